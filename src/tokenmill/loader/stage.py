"""Which source each sequence of a stage comes from, and how far each source has been read.

A stage mixes its sources in a fixed proportion: `counts[s]` sequences of source s in each round. Source s has its own
cursor, so the order of a source does not depend on the sources beside it. The rule has no state: sequence j of source
s belongs to slot floor((2j + 1) C / 2c) of the C slots of a round, where c is its count; sequences of one slot are in
the order of the sources. So each round has exactly the counts, and after any number of sequences each source is within
one sequence for each source of its share.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenmill.loader.order import Numbers


@dataclass(frozen=True, slots=True)
class Stage:
    """A part of the training with one proportion and one sequence length.

    `counts` has the sequences of each source in a round, `starts` the tokens of each source that earlier stages used.
    """

    sequence_tokens: int
    counts: tuple[int, ...]
    starts: tuple[int, ...]

    @property
    def round_sequences(self) -> int:
        """The number of sequences in a round."""
        return sum(self.counts)

    def sources_of(self, first: int, last: int) -> list[tuple[int, int, int, Numbers]]:
        """For sequences [first, last): each source, its own sequences [a, b), and the rows to which they go.

        Sequences are counted from the start of the stage, rows from `first`.
        """
        if len(self.counts) == 1:
            return [(0, first, last, np.arange(last - first))]
        sources = self._mixture(first, last)
        before = self.used(first)
        rows = [(source, np.flatnonzero(sources == source)) for source in range(len(self.counts))]
        return [(source, before[source], before[source] + len(row), row) for source, row in rows if len(row)]

    def used(self, sequences: int) -> list[int]:
        """How many of the first `sequences` sequences of the stage come from each source."""
        rounds, within = divmod(sequences, self.round_sequences)
        slot = self._slot_of(within)
        taken = self._before(slot)
        rest = within - sum(taken)
        for source, following in enumerate(self._before(slot + 1)):
            if rest and following > taken[source]:
                taken[source], rest = following, rest - 1
        return [rounds * count + some for count, some in zip(self.counts, taken, strict=True)]

    def cursors(self, sequences: int) -> tuple[int, ...]:
        """The tokens of each source that are used after so many sequences: the `starts` of the next stage."""
        used = self.used(sequences)
        return tuple(start + self.sequence_tokens * count for start, count in zip(self.starts, used, strict=True))

    def _mixture(self, first: int, last: int) -> Numbers:
        """The source of each of the sequences [first, last)."""
        chunks = []
        while first < last:
            within = first % self.round_sequences
            stop = min(within + last - first, self.round_sequences)
            slot = self._slot_of(within)
            taken = self._taken(slot, self._slot_of(stop - 1) + 1)
            _, source = np.nonzero(taken)
            skipped = within - sum(self._before(slot))
            chunks.append(source[skipped : skipped + stop - within])
            first += stop - within
        return np.concatenate(chunks)

    def _taken(self, first: int, last: int) -> np.ndarray[tuple[int, int], np.dtype[np.bool_]]:
        """Whether slots [first, last) of a round have a sequence of each source.

        A product of a slot and a count may exceed 64 bits, so the first one is exact in Python and the others are
        relative to it.
        """
        total = self.round_sequences
        columns = []
        for count in self.counts:
            quotient, rest = divmod(2 * first * count, total)
            products = rest + 2 * count * np.arange(last - first + 1, dtype=np.int64)
            columns.append(np.diff((quotient + -(-products // total)) // 2) > 0)
        return np.stack(columns, axis=1)

    def _before(self, slot: int) -> list[int]:
        """The number of sequences of each source in the slots before this one."""
        total = self.round_sequences
        return [-(-2 * slot * count // total) // 2 for count in self.counts]

    def _slot_of(self, within: int) -> int:
        """The slot of a sequence of a round: the last one with at most so many sequences before it."""
        low, high = max(within - len(self.counts), 0), within + len(self.counts)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if sum(self._before(middle)) <= within else (low, middle - 1)
        return low
