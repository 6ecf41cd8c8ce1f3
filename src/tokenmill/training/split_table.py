"""How many tokens of each part a split or a condition chooses: a small table, made once and kept in the store.

The documents that are held out are those that exports with the same `--val` hold out. A condition is on kept columns.
Erased documents satisfy no condition, because their values are gone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.choices import Split
from tokenmill.sources import splits_of
from tokenmill.storage import thread_map
from tokenmill.storage.digest import hash_of
from tokenmill.store import layout
from tokenmill.store.held_out import HeldOut, split_name
from tokenmill.store.reader import Store
from tokenmill.training.derived_table import derived_columns
from tokenmill.training.order import Numbers
from tokenmill.training.parts import LoaderParts

# Of a condition, `held_out` and `tokens` are those of the documents that satisfy it.
SCHEMA = pa.schema([("held_out", pa.int64())])
WHERE_SCHEMA = SCHEMA.append(pa.field("tokens", pa.int64()))

# Parts of an object store whose columns are fetched at the same time.
PREFETCH_PARTS = 16


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
        return f"{layout.SPLITS}/{self.label}.parquet"

    @property
    def label(self) -> str:
        """The condition and what is held out, as a part of a file name."""
        val = f"val-{self.val or 'none'}"
        if (split := split_name(self.val)) is not None:  # a name may have any character
            val = f"val-split-{hash_of(split.encode())[:16]}"
        return val if self.where is None else f"where-{hash_of(self.where.encode())[:16]}-{val}"

    def identity(self, store: Store) -> str:
        """What the documents follow from. An erasure removes values that a condition reads, and no split."""
        if self.where is None:
            return store.identity
        return hash_of(f"{store.digest} {self.where}".encode())

    def origin(self, store: Store) -> str:
        """What the table follows from: the documents, and which of them are held out."""
        val = self.val if split_name(self.val) is None else f"{self.val} of {store.run.sources_blake3}"
        return f"{self.identity(store)} {val}"


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
    schema = SCHEMA if choice.where is None else WHERE_SCHEMA
    columns = derived_columns(
        folder, choice.name, schema, choice.origin(store), lambda: _count(parts, choice, held_out)[: len(schema)]
    )
    tokens = columns[1] if choice.where is not None else store.manifest["tokens"].to_numpy()
    chosen = columns[0] if choice.split == "val" else tokens - columns[0]
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
