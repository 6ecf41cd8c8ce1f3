"""How many tokens of each part are held out for validation: a small table, made once and kept in the store.

The documents are those that exports with the same fraction hold out. The table is derived from the parts; if it is
missing, damaged or made from other parts, it is made again.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from tokenmill.errors import StorageError, StoreError
from tokenmill.loader.order import Numbers
from tokenmill.loader.parts import LoaderParts
from tokenmill.storage import Folder, prefetch_map
from tokenmill.store import layout, tables
from tokenmill.store.reader import Store
from tokenmill.system import machine
from tokenmill.tokenizers import document_hash

Split = Literal["train", "val"]

SCHEMA = pa.schema([("held_out", pa.int64())])

# Parts of an object store whose columns are fetched at the same time.
PREFETCH_PARTS = 16

# The metadata key under which the table names what it was made from (see `_stamp`).
STAMP = b"tokenmill.split"


@dataclass(frozen=True, slots=True)
class SplitTable:
    """One split of a store: which documents it has, and `tokens`, how many tokens of each part."""

    fraction: float
    split: Split
    identities: npt.NDArray[np.uint64]
    tokens: Numbers
    file: str

    def chooses(self, source: npt.NDArray[np.uint32], row: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Whether each document of a part is in the split."""
        held_out = document_hash.held_out(self.identities, source, row, self.fraction)
        return held_out if self.split == "val" else ~held_out


def open_split(parts: LoaderParts, fraction: float, split: Split) -> SplitTable:
    """Open one split of a store. The table is read, or made and, if the store can be written, kept."""
    store, folder = parts.store, parts.folder
    name = f"{layout.SPLITS}/val-{fraction!r}.parquet"
    identities = store.sources["identity"].to_numpy()
    held_out = _read(folder, name, store, fraction)
    if held_out is None:
        held_out = _count(parts, fraction, identities)
        with suppress(StoreError, StorageError):  # a store that cannot be written is read all the same
            folder.create(layout.SPLITS)
            schema = SCHEMA.with_metadata({STAMP: _stamp(store, fraction, held_out)})
            table = pa.table([held_out], schema=schema)
            tables.publish_table(folder, name, table)
    tokens = held_out if split == "val" else store.manifest["tokens"].to_numpy() - held_out
    return SplitTable(fraction, split, identities, tokens, folder.path(name))


def _stamp(store: Store, fraction: float, held_out: Numbers) -> bytes:
    """The parts and the fraction that a table was made from, and its checksum: every batch depends on every number."""
    return f"{store.identity} {fraction!r} {xxhash.xxh3_128_hexdigest(held_out.tobytes())}".encode()


def _read(folder: Folder, name: str, store: Store, fraction: float) -> Numbers | None:
    """Read the table; None if it is not there, damaged, or made from other parts."""
    try:
        table = tables.read_table(folder, name, schema=SCHEMA) if folder.exists(name) else None
    except StoreError:
        return None
    if table is None:
        return None
    held_out: Numbers = table["held_out"].to_numpy()
    return held_out if (table.schema.metadata or {}).get(STAMP) == _stamp(store, fraction, held_out) else None


def _count(parts: LoaderParts, fraction: float, identities: npt.NDArray[np.uint64]) -> Numbers:
    """Count the held-out tokens of each part. NumPy hashes without the interpreter lock, so threads share the work."""
    numbers = range(len(parts.store.manifest))

    def held_out(part: int) -> int:
        source, row = parts.origins(part)
        chosen = document_hash.held_out(identities, source, row, fraction)
        return int(np.diff(parts.offsets(part))[chosen].sum())

    if parts.folder.is_remote:
        counts = prefetch_map(parts.folder, held_out, numbers, PREFETCH_PARTS)
        return np.fromiter(counts, np.int64, len(numbers))
    with ThreadPoolExecutor(machine.cores()) as threads:
        return np.fromiter(threads.map(held_out, numbers), np.int64, len(numbers))
