"""How many tokens of each part a split or a condition chooses: a small table, made once and kept in the store.

The documents that are held out are those that exports with the same fraction hold out. A condition is on kept columns.
Erased documents satisfy no condition, because their values are gone. The table is derived from the parts; if it is
missing, damaged or made from other parts, it is made again.
"""

from __future__ import annotations

import hashlib
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
from tokenmill.storage import Folder, thread_map
from tokenmill.store import layout, tables
from tokenmill.store.reader import Store
from tokenmill.tokenizers import document_hash

Split = Literal["train", "val"]

# Of a condition, `held_out` and `tokens` are those of the documents that satisfy it.
SCHEMA = pa.schema([("held_out", pa.int64())])
WHERE_SCHEMA = SCHEMA.append(pa.field("tokens", pa.int64()))

# Parts of an object store whose columns are fetched at the same time.
PREFETCH_PARTS = 16

# The metadata key under which the table names what it was made from (see `_stamp`).
STAMP = b"tokenmill.split"


@dataclass(frozen=True, slots=True)
class Choice:
    """Which documents of a store are read: one split of a fraction, those that satisfy `where`, or both."""

    fraction: float | None
    split: Split
    where: str | None = None

    @property
    def name(self) -> str:
        """The name of the table."""
        val = f"val-{'none' if self.fraction is None else repr(self.fraction)}"
        if self.where is None:
            return f"{layout.SPLITS}/{val}.parquet"
        return f"{layout.SPLITS}/where-{hashlib.sha256(self.where.encode()).hexdigest()[:16]}-{val}.parquet"

    def identity(self, store: Store) -> str:
        """What the documents follow from. An erasure removes values that a condition reads, and no split."""
        if self.where is None:
            return store.identity
        return hashlib.sha256(f"{store.digest} {self.where}".encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class SplitTable:
    """The documents of a choice, and `tokens`, how many tokens they have in each part."""

    choice: Choice
    identities: npt.NDArray[np.uint64]
    tokens: Numbers
    file: str

    def chooses(self, parts: LoaderParts, part: int) -> npt.NDArray[np.bool_]:
        """Whether each document of a part is chosen."""
        held_out, matches = _masks(parts, part, self.choice, self.identities)
        return matches & (held_out if self.choice.split == "val" else ~held_out)


def open_split(parts: LoaderParts, choice: Choice) -> SplitTable:
    """Open a choice of documents. The table is read, or made and, if the store can be written, kept."""
    store, folder = parts.store, parts.folder
    identities = store.sources["identity"].to_numpy()
    counts = _read(folder, store, choice)
    if counts is None:
        counts = _count(parts, choice, identities)
        with suppress(StoreError, StorageError):  # a store that cannot be written is read all the same
            folder.create(layout.SPLITS)
            schema = SCHEMA if choice.where is None else WHERE_SCHEMA
            columns = list(counts[: len(schema)])
            metadata = {STAMP: _stamp(store, choice, columns)}
            tables.publish_table(folder, choice.name, pa.table(columns, schema=schema.with_metadata(metadata)))
    held_out, tokens = counts
    return SplitTable(
        choice, identities, held_out if choice.split == "val" else tokens - held_out, folder.path(choice.name)
    )


def _masks(
    parts: LoaderParts, part: int, choice: Choice, identities: npt.NDArray[np.uint64]
) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Whether each document of a part is held out, and whether it satisfies the condition."""
    source, row = parts.origins(part)
    matches = np.ones(len(row), np.bool_) if choice.where is None else parts.matching(part, choice.where)
    if choice.fraction is None:
        return np.zeros(len(row), np.bool_), matches
    return document_hash.held_out(identities, source, row, choice.fraction), matches


def _stamp(store: Store, choice: Choice, columns: list[Numbers]) -> bytes:
    """The parts and the choice that a table was made from, and its checksum: every batch depends on every number."""
    checksum = xxhash.xxh3_128_hexdigest(b"".join(column.tobytes() for column in columns))
    return f"{choice.identity(store)} {choice.fraction!r} {checksum}".encode()


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


def _count(parts: LoaderParts, choice: Choice, identities: npt.NDArray[np.uint64]) -> tuple[Numbers, Numbers]:
    """Count the held-out tokens and all tokens of the choice in each part."""
    numbers = range(len(parts.store.manifest))

    def count(part: int) -> tuple[int, int]:
        held_out, matches = _masks(parts, part, choice, identities)
        lengths = np.diff(parts.offsets(part))
        return int(lengths[held_out & matches].sum()), int(lengths[matches].sum())

    counts = list(thread_map(parts.folder, count, numbers, PREFETCH_PARTS))
    held_out, tokens = np.array(counts, np.int64).reshape(-1, 2).T
    return np.ascontiguousarray(held_out), np.ascontiguousarray(tokens)
