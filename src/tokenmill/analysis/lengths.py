"""Lengths of documents, counted in buckets: exact up to 255 tokens, and narrower than 1 % of the length beyond.

The number of buckets is fixed, so counts of any number of documents add up in the same few kilobytes. Powers of two are
edges of buckets: how many documents are shorter than 1,024 tokens is told exactly.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]

EXACT = 256
STEPS = EXACT // 2
"""Buckets of each octave beyond the exact ones: each is at most 1/128 of its length wide."""

OCTAVES = 44
BUCKETS = EXACT + OCTAVES * STEPS
LONGEST = (EXACT << OCTAVES) - 1
"""Longer documents than any memory holds; a length beyond it counts as this one."""


def bucket(lengths: Counts) -> Counts:
    """The bucket of each length."""
    known = np.clip(lengths, 0, LONGEST)
    shift = np.maximum(np.frexp(known.astype(np.float64))[1] - 8, 0).astype(np.int64)  # below 2**53, so exact
    found: Counts = np.where(shift == 0, known, EXACT + (shift - 1) * STEPS + (known >> shift) - STEPS)
    return found


def first_lengths() -> Counts:
    """The shortest length of each bucket, and one more that ends the last."""
    place = np.arange(BUCKETS - EXACT + 1, dtype=np.int64)
    beyond = (STEPS + place % STEPS) << (place // STEPS + 1)
    return np.concatenate([np.arange(EXACT, dtype=np.int64), beyond])


@dataclass
class LengthCounts:
    """How many documents are in each bucket, and how many tokens they have; the shortest and the longest exactly."""

    documents: Counts = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    tokens: Counts = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    shortest: int | None = None
    longest: int | None = None

    def add(self, lengths: Counts) -> None:
        """Count some documents."""
        if not len(lengths):
            return
        places = bucket(lengths)
        self.documents += np.bincount(places, minlength=BUCKETS)
        # Sums are floats, exact below 2**53: more tokens than that are in no part.
        self.tokens += np.bincount(places, weights=lengths, minlength=BUCKETS).astype(np.int64)
        self._reach(int(lengths.min()), int(lengths.max()))

    def join(self, other: LengthCounts) -> None:
        """Take over what was counted elsewhere."""
        self.documents += other.documents
        self.tokens += other.tokens
        if other.shortest is not None and other.longest is not None:
            self._reach(other.shortest, other.longest)

    def _reach(self, shortest: int, longest: int) -> None:
        self.shortest = shortest if self.shortest is None else min(self.shortest, shortest)
        self.longest = longest if self.longest is None else max(self.longest, longest)

    def quantile(self, share: float) -> int:
        """The length that this share of the documents does not exceed: exact, or at most 1 % off."""
        if self.shortest is None or self.longest is None:
            return 0
        ends = np.cumsum(self.documents)
        rank = min(max(int(np.ceil(share * int(ends[-1]))), 1), int(ends[-1]))
        place = int(np.searchsorted(ends, rank))
        first, after = map(int, first_lengths()[place : place + 2])
        return min(max((first + after - 1) // 2, self.shortest), self.longest)

    def shorter_than(self, length: int) -> tuple[int, int]:
        """The documents that are shorter than a power of two, and their tokens."""
        place = int(bucket(np.array([length], np.int64))[0])
        return int(self.documents[:place].sum()), int(self.tokens[:place].sum())
