"""A histogram of document lengths: exact up to 255 tokens, with buckets narrower than 1 % of the length beyond.

The number of buckets is fixed, so the counts of any number of documents take the same few kilobytes. Powers of two are
bucket edges, so the number of documents shorter than, say, 1,024 tokens is exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Counts = npt.NDArray[np.int64]

# Lengths below this have a bucket each.
EXACT = 256
# Buckets per octave beyond EXACT: a bucket is at most 1/128 of its length wide.
STEPS = EXACT // 2
OCTAVES = 44
BUCKETS = EXACT + OCTAVES * STEPS
# No memory holds a longer document. A greater length counts as this one.
LONGEST = (EXACT << OCTAVES) - 1


def bucket(lengths: Counts) -> Counts:
    """The bucket of each length."""
    clipped = np.clip(lengths, 0, LONGEST)
    shift = np.maximum(np.frexp(clipped.astype(np.float64))[1] - 8, 0).astype(np.int64)  # below 2**53, so exact
    return np.asarray(np.where(shift == 0, clipped, EXACT + (shift - 1) * STEPS + (clipped >> shift) - STEPS))


def first_lengths() -> Counts:
    """The shortest length of each bucket, and the end of the last bucket."""
    index = np.arange(BUCKETS - EXACT + 1, dtype=np.int64)
    beyond = (STEPS + index % STEPS) << (index // STEPS + 1)
    return np.concatenate([np.arange(EXACT, dtype=np.int64), beyond])


@dataclass
class LengthCounts:
    """Documents and their tokens per bucket. The shortest and the longest length are exact."""

    documents: Counts = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    tokens: Counts = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    shortest: int | None = None
    longest: int | None = None

    def add(self, lengths: Counts) -> None:
        """Count documents of these lengths."""
        if not len(lengths):
            return
        buckets = bucket(lengths)
        self.documents += np.bincount(buckets, minlength=BUCKETS)
        # bincount adds floats, which are exact below 2**53. No part has that many tokens.
        self.tokens += np.bincount(buckets, weights=lengths, minlength=BUCKETS).astype(np.int64)
        self._extend(int(lengths.min()), int(lengths.max()))

    def merge(self, other: LengthCounts) -> None:
        """Add the counts of another histogram."""
        self.documents += other.documents
        self.tokens += other.tokens
        if other.shortest is not None and other.longest is not None:
            self._extend(other.shortest, other.longest)

    def _extend(self, shortest: int, longest: int) -> None:
        self.shortest = shortest if self.shortest is None else min(self.shortest, shortest)
        self.longest = longest if self.longest is None else max(self.longest, longest)

    def quantile(self, fraction: float) -> int:
        """The length that this fraction of the documents does not exceed: exact, or at most 1 % off."""
        if self.shortest is None or self.longest is None:
            return 0
        ends = np.cumsum(self.documents)
        rank = min(max(int(np.ceil(fraction * int(ends[-1]))), 1), int(ends[-1]))
        index = int(np.searchsorted(ends, rank))
        first, after = map(int, first_lengths()[index : index + 2])
        return min(max((first + after - 1) // 2, self.shortest), self.longest)

    def shorter_than(self, length: int) -> tuple[int, int]:
        """The number of documents shorter than `length`, a power of two, and the number of their tokens."""
        index = int(bucket(np.array([length], np.int64))[0])
        return int(self.documents[:index].sum()), int(self.tokens[:index].sum())
