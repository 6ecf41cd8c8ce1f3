"""Which source each sequence of a stage comes from, and how far each source has been read.

A stage mixes its sources in a fixed proportion: `counts[s]` sequences of source s in each round. Source s has its own
cursor, so the order of a source does not depend on the sources beside it. `mixture.py` has the rule.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenmill.loader.mixture import Mixture
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
        return Mixture(self.counts).ranges(first, last)

    def used(self, sequences: int) -> list[int]:
        """How many of the first `sequences` sequences of the stage come from each source."""
        return Mixture(self.counts).used(sequences)

    def cursors(self, sequences: int) -> tuple[int, ...]:
        """The tokens of each source that are used after so many sequences: the `starts` of the next stage."""
        used = self.used(sequences)
        return tuple(start + self.sequence_tokens * count for start, count in zip(self.starts, used, strict=True))
