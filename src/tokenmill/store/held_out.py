"""Which documents are held out for validation: a fraction of them, by hash, or the documents of a split of the sources.

Exports, loaders and recipes take the same values of `--val` for both, and hold out the same documents. For a store of
few documents, a fraction may hold out none of them, or all. `val_advice` proposes one that gives both splits some.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError
from tokenmill.humanize import parse_fraction
from tokenmill.storage import Folder
from tokenmill.store import tables
from tokenmill.store.job import require_run
from tokenmill.tokenization import document_hash

# What a `--val` begins with that names a split of the sources.
SPLIT = "split:"


def parse_held_out(val: str, others: str = "") -> str | None:
    """A fraction as its shortest text, `split:NAME`, or None if no document is held out.

    Raises UsageError for anything else; `others` are values that the caller takes, too.
    """
    if val == "none":
        return None
    if val.startswith(SPLIT) and val != SPLIT:
        return val
    fraction = parse_fraction(val)
    if fraction is None or not 0 <= fraction < 1:
        raise UsageError(
            f"--val {val} is not a fraction of the documents",
            f"Give a fraction between 0 and 1 (0.0005, or 0.05%), split:NAME, {others}or none.",
        )
    return repr(fraction) if fraction else None


def split_name(val: str | None) -> str | None:
    """The split of the sources that a `--val` names; None if it names none."""
    return val.removeprefix(SPLIT) if val is not None and val.startswith(SPLIT) else None


def require_split(val: str | None, splits: Iterable[str | None]) -> None:
    """Raise UsageError if `--val` names a split that no source has, or that all sources have."""
    name = split_name(val)
    if name is None:
        return
    found = set(splits)
    known = ", ".join(sorted(split for split in found if split is not None)) or "none"
    if name not in found:
        raise UsageError(
            f"--val {val}: no source is of this split",
            f"splits       {known}",
            "Prepare the dataset with --split all, or hold out a fraction of the documents: --val 0.01.",
        )
    if found == {name}:
        raise UsageError(
            f"--val {val} would hold out all documents",
            f"splits       {known}",
            "Prepare the dataset with its other splits, too: --split all.",
        )


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The documents that are held out. `identities` are those of all sources.

    `is_held_out` is whether all documents of a source are; None if a fraction of the documents is.
    """

    identities: npt.NDArray[np.uint64]
    fraction: float
    is_held_out: npt.NDArray[np.bool_] | None

    @classmethod
    def of(cls, val: str, identities: npt.NDArray[np.uint64], splits: Sequence[str | None]) -> HeldOut:
        """The documents of a `--val`, of sources with these identities and splits."""
        name = split_name(val)
        if name is None:
            return cls(identities, float(val), None)
        return cls(identities, 0.0, np.array([split == name for split in splits], np.bool_))

    def documents(self, source: npt.NDArray[np.uint32], row: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_]:
        """Whether each document is held out."""
        if self.is_held_out is None:
            return document_hash.held_out(self.identities, source, row, self.fraction)
        return self.is_held_out[source]


# With more documents or parts than this, no part is read for an advice.
MAX_DOCUMENTS = 10_000
MAX_PARTS = 100

# A smaller validation split says little about a model: it is one or two windows of a trainer.
TINY_VAL_TOKENS = 2048

# Fractions that are proposed first.
VAL_FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)


def val_advice(folder: Folder, positions: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64]) -> str:
    """What gives documents to both splits; empty if nothing does.

    Args:
        folder: The store, whose sources decide the advice for a single document.
        positions: The position of each document (see `document_hash.val_positions`).
        lengths: The tokens of each document.
    """
    if len(positions) == 1:
        one = "the store has one document, and a document is in one split only"
        kinds = set(tables.read_sources(folder, require_run(folder))["kind"].unique().to_pylist())
        return f"{one}. Prepare it again with --separator '\\n\\n' and another --out" if kinds == {"text"} else one
    fraction = proposed_fraction(positions, lengths)
    return "" if fraction is None else f"use --val {fraction:.15g}"


def proposed_fraction(positions: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64]) -> float | None:
    """A fraction that holds out TINY_VAL_TOKENS if possible, else one document, and not the last one; None without."""
    if len(positions) < 2:
        return None
    order = np.argsort(positions)
    edges, held_out = positions[order], np.cumsum(lengths[order])
    last = int(np.searchsorted(held_out, TINY_VAL_TOKENS))
    last = last if last <= len(edges) - 2 else 0
    usual = (fraction for fraction in VAL_FRACTIONS if edges[last] < fraction <= edges[-1])
    return next(usual, None) or _shortest_between(float(edges[last]), float(edges[last + 1]))


def _shortest_between(low: float, high: float) -> float | None:
    """The number with the fewest digits that is above `low` and not above `high`."""
    for digits in range(1, 16):
        scale = 10.0**digits
        number = (math.floor(low * scale) + 1) / scale
        if low < number <= high:
            return number
    return None
