"""How far a source has been read: a position in its order, and the rests of grains that no sequence has used yet.

A source is read in its own order, counted in tokens through all epochs. Sequences are slices of grains. If a stage has
longer sequences than the stage before it, the first position where its sequences can begin may be later than the
cursor. The tokens between are pending: the next stage with shorter sequences begins with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tokenmill.training.order import Numbers


@dataclass(frozen=True, slots=True)
class SourceCursor:
    """Tokens before `position` are used, but those of the ranges in `pending`."""

    position: int = 0
    pending: tuple[tuple[int, int], ...] = ()

    @property
    def pending_tokens(self) -> int:
        """The tokens before the position that no sequence has used."""
        return sum(stop - start for start, stop in self.pending)

    @property
    def used(self) -> int:
        """The tokens that sequences have used."""
        return self.position - self.pending_tokens

    def unread(self, epoch: int) -> int:
        """The tokens of the first epoch, which has `epoch` tokens, that no sequence has used."""
        waiting = sum(min(stop, epoch) - min(start, epoch) for start, stop in self.pending)
        return max(epoch - self.position, 0) + waiting

    def available(self, end: int, sequence_tokens: int) -> int:
        """How many sequences there are before the position `end`."""
        pieces = self._pieces(sequence_tokens)
        whole = sum(count for _, count in pieces)
        return whole + max(end - self._aligned(sequence_tokens), 0) // sequence_tokens

    def starts(self, first: int, last: int, sequence_tokens: int) -> Numbers:
        """The positions of sequences [first, last) after the cursor, counted from 0."""
        numbers = np.arange(first, last)
        pieces = self._pieces(sequence_tokens)
        if not pieces:
            return self._aligned(sequence_tokens) + numbers * sequence_tokens
        begins = np.array([start for start, _ in pieces] + [self._aligned(sequence_tokens)])
        before = np.cumsum([0] + [count for _, count in pieces])
        piece = np.searchsorted(before, numbers, side="right") - 1
        return np.asarray(begins[piece] + (numbers - before[piece]) * sequence_tokens)

    def after(self, sequences: int, sequence_tokens: int) -> SourceCursor:
        """The cursor after so many more sequences."""
        pending, rest = [], sequences
        for start, stop in self.pending:
            taken = min(rest, (stop - start) // sequence_tokens)
            rest -= taken
            if start + taken * sequence_tokens < stop:
                pending.append((start + taken * sequence_tokens, stop))
        if not rest:
            return SourceCursor(self.position, tuple(pending))
        aligned = self._aligned(sequence_tokens)
        if aligned > self.position:
            pending.append((self.position, aligned))
        return SourceCursor(aligned + rest * sequence_tokens, tuple(pending))

    def _pieces(self, sequence_tokens: int) -> list[tuple[int, int]]:
        """The pending ranges that hold sequences of this length: the start of each, and how many it holds."""
        counts = [(start, (stop - start) // sequence_tokens) for start, stop in self.pending]
        return [(start, count) for start, count in counts if count]

    def _aligned(self, sequence_tokens: int) -> int:
        """The first position from the cursor on where a sequence of this length can begin."""
        return -(-self.position // sequence_tokens) * sequence_tokens
