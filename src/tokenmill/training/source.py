"""Sources of sequences: the stream of a store, cut into grains, in the order of its epochs; or several as one."""

from __future__ import annotations

import itertools

import numpy as np

from tokenmill.choices import Shuffle
from tokenmill.storage.digest import hash_of
from tokenmill.training.batches import Span
from tokenmill.training.index import Stream
from tokenmill.training.order import GrainOrder, Numbers
from tokenmill.training.rows import Rows, Waste

# How many characters of a digest are in a state: 64 bits.
DIGEST_CHARACTERS = 16


class LoaderSource:
    """The grains of the rows of a stream. Grain i has positions [iG, (i + 1)G).

    A source is read in its own order: position p, counted in tokens through all epochs, is in grain p // G of the
    order. Sequences are slices of grains, so sequences of another length continue where the last ones ended.
    """

    def __init__(self, stream: Stream, rows: Rows, grain_tokens: int, shuffle: Shuffle, seed: int) -> None:
        self.stream = stream
        self.rows = rows
        self.grain_tokens = grain_tokens
        self.order = GrainOrder(rows.tokens // grain_tokens, shuffle, seed, stream.identity)

    @property
    def tokens(self) -> int:
        """The tokens of an epoch, with padding."""
        return self.order.grains * self.grain_tokens

    @property
    def tail_tokens(self) -> int:
        """The tokens at the end of the stream that fill no grain."""
        waste = self.rows.waste
        return self.stream.tokens - waste.long_tokens + waste.padding_tokens - self.tokens

    def starts(self, first: int, last: int, sequence_tokens: int) -> Numbers:
        """The positions where sequences [first, last) of the order begin."""
        in_grain = self.grain_tokens // sequence_tokens
        grains, slices = np.divmod(np.arange(first, last), in_grain)
        low = first // in_grain
        chosen = self.order.at(low, (last - 1) // in_grain + 1)[grains - low]
        return np.asarray(chosen * self.grain_tokens + slices * sequence_tokens)

    def spans(self, first: int, last: int, sequence_tokens: int) -> list[Span]:
        """The ranges of the stream that fill sequences [first, last) of the order."""
        in_grain = self.grain_tokens // sequence_tokens
        low = first // in_grain
        spans = []
        for number, grain in enumerate(self.order.at(low, (last - 1) // in_grain + 1).tolist(), low):
            begin, end = max(first - number * in_grain, 0), min(last - number * in_grain, in_grain)
            start = grain * self.grain_tokens
            spans += self.rows.spans(start + begin * sequence_tokens, start + end * sequence_tokens, sequence_tokens)
        return spans


class MergedSource:
    """The grains of one store or several in one order. The grains of a store follow those of the store before it."""

    def __init__(self, members: list[LoaderSource], shuffle: Shuffle, seed: int) -> None:
        self.members = members
        self.grain_tokens = members[0].grain_tokens
        digests = [member.order.store for member in members]
        digest = digests[0] if len(digests) == 1 else hash_of("".join(digests).encode())
        self._ends = np.cumsum([member.order.grains for member in members])
        self.order = GrainOrder(int(self._ends[-1]), shuffle, seed, digest)

    @property
    def digest(self) -> str:
        """What identifies the content of the stores, their order, and the condition on their documents."""
        digest = self.order.store[:DIGEST_CHARACTERS]
        return digest if self.where is None else f"{digest} where {self.where}"

    @property
    def where(self) -> str | None:
        """The condition on kept columns, or None for all documents."""
        return self.members[0].stream.where

    @property
    def tokens(self) -> int:
        """The tokens of an epoch."""
        return self.order.grains * self.grain_tokens

    @property
    def waste(self) -> Waste:
        """What the stores leave out, and their padding."""
        return sum((member.rows.waste for member in self.members), Waste())

    @property
    def tail_tokens(self) -> int:
        """The tokens at the ends of the stores that fill no grain."""
        return sum(member.tail_tokens for member in self.members)

    def locate(self, positions: Numbers) -> tuple[Numbers, Numbers]:
        """The member of each position of the order, and the position in the stream of the member."""
        numbers, offsets = np.divmod(positions, self.grain_tokens)
        grains = self._grains(numbers)
        member = np.searchsorted(self._ends, grains, side="right")
        first = np.concatenate([[0], self._ends[:-1]])[member]
        return member, (grains - first) * self.grain_tokens + offsets

    def _grains(self, numbers: Numbers) -> Numbers:
        """The grains at some positions of the order, which are mostly consecutive."""
        if not len(numbers):
            return numbers
        distinct, inverse = np.unique(numbers, return_inverse=True)
        breaks = np.flatnonzero(np.diff(distinct) > 1) + 1
        edges = itertools.pairwise([0, *breaks.tolist(), len(distinct)])
        found = [self.order.at(int(distinct[low]), int(distinct[high - 1]) + 1) for low, high in edges]
        return np.asarray(np.concatenate(found)[inverse])
