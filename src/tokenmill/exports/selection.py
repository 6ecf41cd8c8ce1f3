"""Choose the documents of an export by recipe: whole documents, until the tokens of each source are reached.

A source that is read more than once is in the collection more than once: each copy has numbers of its own for its
sources, so the shuffle gives the copies different positions. Of the last copy, only the documents with the smallest
hashes are taken. The limit is the hash of the first document that would exceed the tokens, so the export has less than
one document too few. Validation documents are in the first copy only, and do not count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.exports.job import SelectedStore, Selection
from tokenmill.exports.shards import Counts
from tokenmill.storage import prefetch_map
from tokenmill.store.collection import Collection, open_collection
from tokenmill.store.erasures import without_erased
from tokenmill.system import machine
from tokenmill.tokenizers import document_hash

# Ranges of hashes whose tokens are counted in the first pass. The second pass sorts the documents of one range.
BINS = 1 << 16
BIN_SHIFT = np.uint64(48)


@dataclass(frozen=True, slots=True)
class SourceBudget:
    """The tokens that a recipe reads from a source, over all of its epochs."""

    name: str
    directories: tuple[str, ...]
    tokens: int


@dataclass(frozen=True, slots=True)
class SelectedStores:
    """The stores of a recipe, with a member for each copy; the selection; and the training tokens of each source."""

    stores: Collection
    selection: Selection
    tokens: dict[str, int]


def select(budgets: Sequence[SourceBudget], val: float | None, seed: int) -> SelectedStores:
    """Choose the documents for some budgets. `val` is the fraction of the documents that are held out."""
    members: list[SelectedStore] = []
    directories: list[str] = []
    tokens: dict[str, int] = {}
    total = 0
    for budget in budgets:
        counting = _Counting(open_collection(budget.directories), val, seed)
        train, held_out = counting.histogram()
        epoch = int(train.sum())
        copies, rest = divmod(budget.tokens, epoch) if epoch else (0, 0)
        limits: list[int | None] = [None] * copies
        tokens[budget.name] = copies * epoch
        if rest:
            last, taken = counting.limit(train, rest)
            limits.append(last)
            tokens[budget.name] += taken
        total += tokens[budget.name] + held_out * bool(limits)
        for copy, limit in enumerate(limits):
            for member in counting.stores.members:
                members.append(SelectedStore(budget.name, copy, member.run.sources, limit))
                directories.append(member.directory)
    stores = open_collection(directories, is_repeated=True)
    return SelectedStores(stores, Selection(seed, total, tuple(members)), tokens)


@dataclass(frozen=True, slots=True)
class _Counting:
    """Counts the tokens of a source by the hashes of its documents."""

    stores: Collection
    val: float | None
    seed: int

    def histogram(self) -> tuple[Counts, int]:
        """The training tokens in each range of hashes, and the tokens that are held out."""
        tokens, held_out = np.zeros(BINS, np.int64), 0
        for keys, lengths, left_out in self._parts():
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
            for keys, lengths, _ in self._parts()
            for inside in [(keys >> BIN_SHIFT) == np.uint64(edge)]
        ]
        keys, lengths = (np.concatenate(columns) for columns in zip(*found, strict=True))
        order = np.argsort(keys, kind="stable")
        sums = before + np.cumsum(lengths[order])
        first = int(np.searchsorted(sums, wanted, side="right"))
        limit = int(keys[order][first])
        return limit, before + int(lengths[keys < np.uint64(limit)].sum())

    def _parts(self) -> Iterator[tuple[document_hash.Keys, npt.NDArray[np.int64], int]]:
        """Yield the hashes and lengths of the training documents of each part, and the tokens that are held out."""
        identities = self.stores.sources["identity"].to_numpy()

        def count(part: int) -> tuple[document_hash.Keys, npt.NDArray[np.int64], int]:
            erased_by = len(self.stores.of_part(part).run.history)
            content = without_erased(self.stores.open_part(part), erased_by)
            lengths = np.diff(content.offsets)
            keys = document_hash.selection_keys(identities, content.source, content.row, self.seed)
            if self.val is None:
                return keys, lengths, 0
            is_val = document_hash.held_out(identities, content.source, content.row, self.val)
            return keys[~is_val], lengths[~is_val], int(lengths[is_val].sum())

        parts = range(len(self.stores.manifest))
        folder = next((m.folder for m in self.stores.members if m.folder.is_remote), self.stores.members[0].folder)
        if folder.is_remote:
            yield from prefetch_map(folder, count, parts)
            return
        with ThreadPoolExecutor(machine.cores()) as threads:
            for start in range(0, len(parts), 64):  # so that few results wait
                yield from threads.map(count, parts[start : start + 64])
