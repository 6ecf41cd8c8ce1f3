"""How many tokens of each part a split or a condition chooses: a small table, made once and kept in the store.

The documents that are held out are those that exports with the same `--val` hold out. A condition is on kept columns.
Erased documents satisfy no condition, because their values are gone. The table is derived from the parts; if it is
missing, damaged or made from other parts, it is made again.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from tokenmill.errors import StorageError, StoreError
from tokenmill.options import Split
from tokenmill.sources import splits_of
from tokenmill.storage import Folder, thread_map
from tokenmill.storage.digest import hash_of
from tokenmill.store import layout, tables
from tokenmill.store.held_out import HeldOut, split_name
from tokenmill.store.reader import Store
from tokenmill.training.order import Numbers
from tokenmill.training.parts import LoaderParts

# Of a condition, `held_out` and `tokens` are those of the documents that satisfy it.
SCHEMA = pa.schema([("held_out", pa.int64())])
WHERE_SCHEMA = SCHEMA.append(pa.field("tokens", pa.int64()))

# Parts of an object store whose columns are fetched at the same time.
PREFETCH_PARTS = 16

# The metadata key under which the table names what it was made from (see `_stamp`).
STAMP = b"tokenmill.split"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which documents of a store are read: held out or not, those that satisfy `where`, or both.

    `val` is a fraction as text, `split:NAME`, or None.
    """

    val: str | None
    split: Split
    where: str | None = None

    @property
    def name(self) -> str:
        """The name of the table."""
        val = f"val-{self.val or 'none'}"
        if (split := split_name(self.val)) is not None:  # a name may have any character
            val = f"val-split-{hash_of(split.encode())[:16]}"
        if self.where is None:
            return f"{layout.SPLITS}/{val}.parquet"
        return f"{layout.SPLITS}/where-{hash_of(self.where.encode())[:16]}-{val}.parquet"

    def identity(self, store: Store) -> str:
        """What the documents follow from. An erasure removes values that a condition reads, and no split."""
        if self.where is None:
            return store.identity
        return hash_of(f"{store.digest} {self.where}".encode())


@dataclass(frozen=True, slots=True)
class SplitTable:
    """The documents of a choice, and `tokens`, how many tokens they have in each part."""

    choice: Choice
    held_out: HeldOut | None
    tokens: Numbers
    file: str

    def chooses(self, parts: LoaderParts, part: int) -> npt.NDArray[np.bool_]:
        """Whether each document of a part is chosen."""
        held_out, matches = _masks(parts, part, self.choice, self.held_out)
        return matches & (held_out if self.choice.split == "val" else ~held_out)


def open_split(parts: LoaderParts, choice: Choice) -> SplitTable:
    """Open a choice of documents. The table is read, or made and, if the store can be written, kept."""
    store, folder = parts.store, parts.folder
    held_out = None
    if choice.val is not None:
        held_out = HeldOut.of(choice.val, store.sources["identity"].to_numpy(), splits_of(store.sources))
    counts = _read(folder, store, choice)
    if counts is None:
        counts = _count(parts, choice, held_out)
        with suppress(StoreError, StorageError):  # a store that cannot be written is read all the same
            folder.create(layout.SPLITS)
            schema = SCHEMA if choice.where is None else WHERE_SCHEMA
            columns = list(counts[: len(schema)])
            metadata = {STAMP: _stamp(store, choice, columns)}
            tables.publish_table(folder, choice.name, pa.table(columns, schema=schema.with_metadata(metadata)))
    held_out_tokens, tokens = counts
    chosen = held_out_tokens if choice.split == "val" else tokens - held_out_tokens
    return SplitTable(choice, held_out, chosen, folder.path(choice.name))


def _masks(
    parts: LoaderParts, part: int, choice: Choice, held_out: HeldOut | None
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Whether each document of a part is held out, and whether it satisfies the condition."""
    source, row = parts.origins(part)
    matches = np.ones(len(row), np.bool_) if choice.where is None else parts.matching(part, choice.where)
    if held_out is None:
        return np.zeros(len(row), np.bool_), matches
    return held_out.documents(source, row), matches


def _stamp(store: Store, choice: Choice, columns: list[Numbers]) -> bytes:
    """The parts and the choice that a table was made from, and its checksum: every batch depends on every number."""
    checksum = xxhash.xxh3_128_hexdigest(b"".join(column.tobytes() for column in columns))
    val = choice.val if split_name(choice.val) is None else f"{choice.val} of {store.run.sources_blake3}"
    return f"{choice.identity(store)} {val} {checksum}".encode()


def _read(folder: Folder, store: Store, choice: Choice) -> tuple[Numbers, Numbers] | None:
    """Read the table; None if it is not there, damaged, or made from other parts."""
    schema = SCHEMA if choice.where is None else WHERE_SCHEMA
    try:
        table = tables.read_table(folder, choice.name, schema=schema) if folder.exists(choice.name) else None
    except StoreError:
        return None
    if table is None:
        return None
    columns: list[Numbers] = [column.to_numpy() for column in table.columns]
    if (table.schema.metadata or {}).get(STAMP) != _stamp(store, choice, columns):
        return None
    return columns[0], columns[1] if choice.where is not None else store.manifest["tokens"].to_numpy()


def _count(parts: LoaderParts, choice: Choice, held_out: HeldOut | None) -> tuple[Numbers, Numbers]:
    """Count the held-out tokens and all tokens of the choice in each part."""
    numbers = range(len(parts.store.manifest))

    def count(part: int) -> tuple[int, int]:
        is_held_out, matches = _masks(parts, part, choice, held_out)
        lengths = np.diff(parts.offsets(part))
        return int(lengths[is_held_out & matches].sum()), int(lengths[matches].sum())

    counts = list(thread_map(parts.folder, count, numbers, PREFETCH_PARTS))
    held_out_tokens, tokens = np.array(counts, np.int64).reshape(-1, 2).T
    return np.ascontiguousarray(held_out_tokens), np.ascontiguousarray(tokens)
