"""The list of `--dedup`: rows of the sources whose text is equal to that of an earlier row. They are not tokenized."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.storage import Folder
from tokenmill.store.layout import DENY
from tokenmill.store.tables import read_table

DUPLICATES_SCHEMA = pa.schema([("source", pa.uint32()), ("row", pa.uint64())])


@dataclass(frozen=True, slots=True)
class DuplicateRows:
    """The rows to leave out, sorted by source and row."""

    source: npt.NDArray[np.uint32]
    row: npt.NDArray[np.uint64]

    def of(self, source: int) -> npt.NDArray[np.uint64]:
        """The rows of a source."""
        first, last = np.searchsorted(self.source, np.array([source, source + 1], np.int64))
        return self.row[first:last]


def duplicates_name(sha256: str) -> str:
    """The name of the list in the store."""
    return f"{DENY}/{sha256}.parquet"


def read_duplicates(folder: Folder, sha256: str) -> DuplicateRows:
    """Read the list of a store, and compare it with its hash."""
    table = read_table(folder, duplicates_name(sha256), sha256, DUPLICATES_SCHEMA)
    return DuplicateRows(table["source"].to_numpy(), table["row"].to_numpy())
