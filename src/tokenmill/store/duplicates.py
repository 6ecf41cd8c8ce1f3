"""The list of `--dedup`: rows of the sources whose text is equal to that of an earlier row. They are not tokenized."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.storage import Folder
from tokenmill.storage.digest import hash_of
from tokenmill.store.layout import DENY, damaged, errors_of
from tokenmill.store.tables import read_table, table_bytes

DUPLICATES_SCHEMA = pa.schema([("source", pa.uint32()), ("row", pa.uint64())])


@dataclass(frozen=True, slots=True)
class DuplicateRows:
    """The rows to leave out, sorted by source and row."""

    source: npt.NDArray[np.uint32]
    row: npt.NDArray[np.uint64]

    def of(self, source: int) -> npt.NDArray[np.uint64]:
        """The rows of a source."""
        number = np.uint32(source)
        return self.row[np.searchsorted(self.source, number) : np.searchsorted(self.source, number, "right")]

    def blake3(self) -> str:
        """The hash of the rows. It does not depend on how they are stored."""
        return hash_of(self.source.astype("<u4").tobytes() + self.row.astype("<u8").tobytes())


def duplicates_bytes(rows: DuplicateRows) -> bytes:
    """The content of the file."""
    return table_bytes(pa.table([rows.source, rows.row], schema=DUPLICATES_SCHEMA))


def duplicates_name(blake3: str) -> str:
    """The name of the list in the store."""
    return f"{DENY}/{blake3}.parquet"


def read_duplicates(folder: Folder, blake3: str) -> DuplicateRows:
    """Read the list of a store, and compare it with its hash."""
    name = duplicates_name(blake3)
    with errors_of(folder, name):
        table = read_table(folder, name, None, DUPLICATES_SCHEMA)
    rows = DuplicateRows(table["source"].to_numpy(), table["row"].to_numpy())
    if rows.blake3() != blake3:
        raise damaged(folder, name, "it is not the list that the job names")
    return rows
