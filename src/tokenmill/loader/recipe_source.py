"""A source of a recipe: one store or several that are shuffled as one."""

from __future__ import annotations

import itertools

import numpy as np

from tokenmill.loader.batches import Span
from tokenmill.loader.order import GrainOrder, Numbers, Shuffle
from tokenmill.loader.source import LoaderSource
from tokenmill.storage.digest import hash_of

# How many characters of a digest are in a state: 64 bits.
DIGEST_CHARACTERS = 16


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

    def packed_spans(self, member: int, start: int, sequence_tokens: int) -> list[Span]:
        """The pieces of documents in the packed row that has the place of a sequence."""
        return self.members[member].packed_spans(start, sequence_tokens)

    def _grains(self, numbers: Numbers) -> Numbers:
        """The grains at some positions of the order, which are mostly consecutive."""
        if not len(numbers):
            return numbers
        distinct, inverse = np.unique(numbers, return_inverse=True)
        breaks = np.flatnonzero(np.diff(distinct) > 1) + 1
        edges = itertools.pairwise([0, *breaks.tolist(), len(distinct)])
        found = [self.order.at(int(distinct[low]), int(distinct[high - 1]) + 1) for low, high in edges]
        grains: Numbers = np.concatenate(found)[inverse]
        return grains
