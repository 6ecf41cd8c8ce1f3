"""Choose the documents of an export by recipe: whole documents, until the tokens of each source are reached.

A source that is read more than once is in the collection more than once: each copy has numbers of its own for its
sources, so the shuffle gives the copies different positions. Of the last copy, only the documents with the smallest
hashes are taken. The limit is the hash of the first document that would exceed the tokens, so the export has less than
one document too few. Validation documents are in the first copy only, and do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.exports.job import FrozenExport, SelectedStore, Selection, left_out_changes
from tokenmill.exports.shards import Counts
from tokenmill.sources import splits_of
from tokenmill.storage import thread_map
from tokenmill.store.collection import Collection, open_collection
from tokenmill.store.held_out import HeldOut
from tokenmill.tokenization import document_hash

# Ranges of hashes whose tokens are counted in the first pass. The second pass sorts the documents of one range.
BINS = 1 << 16
BIN_SHIFT = np.uint64(48)


@dataclass(frozen=True, slots=True)
class SourceBudget:
    """The tokens that a recipe reads from a source, over all of its epochs. `where` is a condition on kept columns."""

    name: str
    directories: tuple[str, ...]
    tokens: int
    where: str | None = None


@dataclass(frozen=True, slots=True)
class SelectedStores:
    """The stores of a recipe, with a member for each copy; the selection; and the training tokens of each source."""

    stores: Collection
    selection: Selection
    tokens: dict[str, int]


def select(
    budgets: Sequence[SourceBudget], val: str | None, seed: int, before: FrozenExport | None = None
) -> SelectedStores:
    """Choose the documents for some budgets. `val` is which documents are held out, as in a job.

    Erased documents count as the recipe reads them, so no other document takes their place. They are not exported,
    unless they were erased after the export `before` was begun.
    """
    members: list[SelectedStore] = []
    directories: list[str] = []
    sources: list[_SelectedSource] = []
    for budget in budgets:
        counting = _Counting(open_collection(budget.directories), val, seed, budget.where)
        train, held_out = counting.histogram()
        epoch = int(train.sum())
        copies, rest = divmod(budget.tokens, epoch) if epoch else (0, 0)
        limit, taken = counting.limit(train, rest) if rest else (None, 0)
        first, limits = len(members), [*[None] * copies, *([limit] if rest else [])]
        sources.append(_SelectedSource(budget.name, counting, first, copies, limit, copies * epoch + taken, held_out))
        for copy, last in enumerate(limits):
            for member in counting.stores.members:
                members.append(SelectedStore(budget.name, copy, member.run.sources, last, budget.where))
                directories.append(member.directory)
    stores = open_collection(directories, is_repeated=True)
    left_out = left_out_changes(before, stores)
    counts = {source.name: source.tokens(left_out) for source in sources}
    selection = Selection(seed, sum(map(sum, counts.values())), tuple(members))
    return SelectedStores(stores, selection, {name: train for name, (train, _) in counts.items()})


@dataclass(frozen=True, slots=True)
class _SelectedSource:
    """The documents of a source: so many copies of all, and those with a hash below `limit` once more.

    `train` and `held_out` are its tokens with erased documents. `first` is the number of its first store.
    """

    name: str
    counting: _Counting
    first: int
    copies: int
    limit: int | None
    train: int
    held_out: int

    def tokens(self, left_out: Sequence[int]) -> tuple[int, int]:
        """The training and validation tokens without what the first `left_out` changes of each store erased."""
        if not self.copies and self.limit is None:
            return 0, 0
        changes = left_out[self.first : self.first + len(self.counting.stores.members)]
        if not any(changes):
            return self.train, self.held_out
        train = held_out = 0
        for keys, lengths, left in self.counting.parts(changes):
            below = 0 if self.limit is None else int(lengths[keys < np.uint64(self.limit)].sum())
            train += self.copies * int(lengths.sum()) + below
            held_out += left
        return train, held_out


@dataclass(frozen=True, slots=True)
class _Counting:
    """Counts the tokens of a source by the hashes of its documents."""

    stores: Collection
    val: str | None
    seed: int
    where: str | None

    def histogram(self) -> tuple[Counts, int]:
        """The training tokens in each range of hashes, and the tokens that are held out."""
        tokens, held_out = np.zeros(BINS, np.int64), 0
        for keys, lengths, left_out in self.parts():
            tokens += np.bincount((keys >> BIN_SHIFT).astype(np.int64), lengths, BINS).astype(np.int64)
            held_out += left_out
        return tokens, held_out

    def limit(self, histogram: Counts, wanted: int) -> tuple[int, int]:
        """The hash of the first document that is not taken, and the tokens of the documents before it."""
        ends = np.cumsum(histogram)
        edge = int(np.searchsorted(ends, wanted, side="right"))
        before = int(ends[edge]) - int(histogram[edge])
        found = [
            (keys[inside], lengths[inside])
            for keys, lengths, _ in self.parts()
            for inside in [(keys >> BIN_SHIFT) == np.uint64(edge)]
        ]
        keys, lengths = (np.concatenate(columns) for columns in zip(*found, strict=True))
        order = np.argsort(keys, kind="stable")
        sums = before + np.cumsum(lengths[order])
        first = int(np.searchsorted(sums, wanted, side="right"))
        limit = int(keys[order][first])
        return limit, before + int(lengths[keys < np.uint64(limit)].sum())

    def parts(self, left_out: Sequence[int] = ()) -> Iterator[tuple[document_hash.Keys, npt.NDArray[np.int64], int]]:
        """Yield the hashes and lengths of the training documents of each part, and the tokens that are held out.

        Documents that the first `left_out` changes of each store erased do not count.
        """
        changes = dict(zip((member.directory for member in self.stores.members), left_out, strict=False))
        identities = self.stores.sources["identity"].to_numpy()
        val = None if self.val is None else HeldOut.of(self.val, identities, splits_of(self.stores.sources))

        def count(part: int) -> tuple[document_hash.Keys, npt.NDArray[np.int64], int]:
            member, content = self.stores.of_part(part), self.stores.open_part(part)
            erased = np.zeros(len(content.row), np.int64) if content.erased is None else content.erased
            source, row, lengths = content.source, content.row, np.diff(content.offsets)
            is_taken = (erased == 0) | (erased > changes.get(member.directory, 0))
            if self.where is not None:  # an erased document satisfies no condition, as in the loader
                is_taken = (erased == 0) & member.matching(part - member.first_part, self.where)
            source, row, lengths = source[is_taken], row[is_taken], lengths[is_taken]
            keys = document_hash.selection_keys(identities, source, row, self.seed)
            if val is None:
                return keys, lengths, 0
            is_val = val.documents(source, row)
            return keys[~is_val], lengths[~is_val], int(lengths[is_val].sum())

        parts = range(len(self.stores.manifest))
        folder = next((m.folder for m in self.stores.members if m.folder.is_remote), self.stores.members[0].folder)
        yield from thread_map(folder, count, parts)
