"""Which source each sequence of a mixture comes from: a rule without state.

The sources are the leaves of a balanced binary tree. Of the first t sequences of a node with count c, its left half
with count l gets the whole number next to t l / c, and its right half the others. So each round of sequences has
exactly the counts. A node adds at most half a sequence to the distance of a source from its share, so after any number
of sequences each source is within log2(sources) / 2 + 1 sequences of its share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tokenmill.training.order import Numbers

# Sequences whose sources are computed together, and the largest round: their product has to fit into 62 bits.
CHUNK_SEQUENCES = 1 << 16
MAX_ROUND = 1 << 45


@dataclass(frozen=True, slots=True)
class Mixture:
    """A mixture with `counts[s]` sequences of source s in each round. A count may be 0."""

    counts: tuple[int, ...]

    def __post_init__(self) -> None:
        assert 0 < sum(self.counts) <= MAX_ROUND  # noqa: S101 - recipes and stores are smaller by far

    def used(self, sequences: int) -> list[int]:
        """How many of the first `sequences` sequences come from each source."""
        used = [0] * len(self.counts)
        nodes = [(0, len(self.counts), sequences)]
        while nodes:
            low, high, taken = nodes.pop()
            if high - low == 1:
                used[low] = taken
            elif taken:
                middle, left, total = self._halves(low, high)
                before, _ = divmod(2 * taken * left + total, 2 * total)
                nodes += [(low, middle, before), (middle, high, taken - before)]
        return used

    def ranges(self, first: int, last: int) -> list[tuple[int, int, int, Numbers]]:
        """For sequences [first, last): each source, its own sequences [a, b), and the rows to which they go.

        Rows are counted from `first`.
        """
        found: dict[int, list[tuple[int, int, Numbers]]] = {}
        for start in range(first, last, CHUNK_SEQUENCES):
            stop = min(start + CHUNK_SEQUENCES, last)
            for source, low, high, rows in self._chunk(start, stop):
                found.setdefault(source, []).append((low, high, rows + (start - first)))
        return [
            (source, chunks[0][0], chunks[-1][1], np.concatenate([rows for _, _, rows in chunks]))
            for source, chunks in sorted(found.items())
        ]

    def _chunk(self, first: int, last: int) -> Iterator[tuple[int, int, int, Numbers]]:
        """Yield the ranges of at most CHUNK_SEQUENCES sequences.

        The sequences of a range are consecutive in each node. The product of a sequence and a count may exceed 64 bits,
        so that of the first one is exact in Python and the others are relative to it.
        """
        nodes = [(0, len(self.counts), first, last, np.arange(last - first))]
        while nodes:
            low, high, start, stop, rows = nodes.pop()
            if start == stop:
                continue
            if high - low == 1:
                yield low, start, stop, rows
                continue
            middle, left, total = self._halves(low, high)
            before, rest = divmod(2 * start * left + total, 2 * total)
            taken = (rest + 2 * left * np.arange(stop - start + 1, dtype=np.int64)) // (2 * total)
            is_left = np.diff(taken) > 0
            after = before + int(taken[-1])
            nodes += [(low, middle, before, after, rows[is_left])]
            nodes += [(middle, high, start - before, stop - after, rows[~is_left])]

    def _halves(self, low: int, high: int) -> tuple[int, int, int]:
        """Where the right half of sources [low, high) begins, the count of the left half, and that of both."""
        middle = (low + high + 1) // 2
        left = sum(self.counts[low:middle])
        return middle, left, left + sum(self.counts[middle:high])
