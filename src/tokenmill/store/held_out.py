"""Which documents are held out for validation: a fraction of them, by hash, or the documents of a split of the sources.

Exports, loaders and recipes take the same values of `--val` for both, and hold out the same documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError
from tokenmill.humanize import parse_fraction
from tokenmill.tokenizers import document_hash

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
