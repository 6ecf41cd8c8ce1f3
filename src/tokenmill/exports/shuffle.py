"""How a shuffle divides its work, from the sizes of the store, of a shard and of a worker's memory alone.

Documents are sorted in runs that fit into a worker. A shard reads its range of keys from every run, so ranges get small
as the store grows. Then runs are merged first: a merge reads one range of keys from `fan_in` neighboring runs, and
writes it as one run. The keys are cut into `fan_in` ranges, so as many runs of about the same size are written, and a
shard reads from `fan_in` times fewer. Runs that are sorted or merged together are a level; there may be several merges.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tokenmill.exports.job import MAX_BINS

# Memory for the libraries of an export worker.
WORKER_OWN_BYTES = 150 << 20

MIN_BATCH_BYTES = 8 << 20
MAX_BATCH_BYTES = 1 << 30

# Sorted runs per worker, at least, so that workers end at about the same time.
RUNS_PER_WORKER = 4

# Bins per shard: a shard reads whole bins, so they should be small beside it.
BINS_PER_SHARD = 32

# A task reads from at most this many runs, or at least this many bytes from each. Below, the reads of a disk or of an
# object store take longer than one more write and read of everything.
FEW_RUNS = 64
MIN_RANGE_BYTES = 256 << 10

# Reads of a range of a run: its index, the origins of the documents, and the tokens.
READS_PER_RANGE = 3


def batch_bytes(worker_bytes: int) -> int:
    """Return how many bytes of documents a worker with this memory reads at once for a shard."""
    return min(max((worker_bytes - WORKER_OWN_BYTES) // 6, MIN_BATCH_BYTES), MAX_BATCH_BYTES)


@dataclass(frozen=True, slots=True)
class ShuffleWork:
    """The work of a shuffle.

    Attributes:
        store_bytes: The documents.
        run_bytes: The documents of a sorted run.
        read_bytes: The documents that a shard reads at once: all of them, or a batch.
        bins: The ranges of keys that the runs of the last level count.
        merges: The fan-in of each merge. Empty if shards read from the runs that were sorted first.
    """

    store_bytes: int
    run_bytes: int
    read_bytes: int
    bins: int = 0
    merges: tuple[int, ...] = ()

    @classmethod
    def of(cls, store_bytes: int, shard_bytes: int, workers: int, worker_bytes: int) -> ShuffleWork:
        """Return the work of all workers, each of which has so much memory."""
        batch = batch_bytes(worker_bytes)
        memory_bytes = max((worker_bytes - WORKER_OWN_BYTES) // 3, MIN_BATCH_BYTES)
        run_bytes = min(memory_bytes, store_bytes // (RUNS_PER_WORKER * workers) + 1)
        work = cls(store_bytes, run_bytes, min(shard_bytes, batch))
        merges = work.choose_merges()
        bins = max(BINS_PER_SHARD * store_bytes // shard_bytes, 8 * store_bytes // batch, math.prod(merges), 2)
        return replace(work, bins=min(1 << bins.bit_length(), MAX_BINS), merges=merges)

    def choose_merges(self) -> tuple[int, ...]:
        """Return the fewest merges after which no task reads from too many runs, with as few ranges as possible."""
        most_merged, most_read = (max(FEW_RUNS, size // MIN_RANGE_BYTES) for size in (self.run_bytes, self.read_bytes))
        powers, bits = range(1, most_merged.bit_length()), range(MAX_BINS.bit_length())
        choices = [(1 << power,) * count for count in bits for power in powers if power * count in bits]
        return min(
            choices, key=lambda merges: (max(self._runs_read(merges), most_read), len(merges), self._ranges(merges))
        )

    @property
    def runs(self) -> int:
        """The runs of a level."""
        return -(-self.store_bytes // self.run_bytes)

    @property
    def runs_read(self) -> int:
        """How many runs a shard reads from."""
        return self._runs_read(self.merges)

    @property
    def most_runs_read(self) -> int:
        """How many runs a task reads from, at most."""
        return max(self.runs_read, *self.merges, 0)

    @property
    def requests(self) -> int:
        """The reads of ranges of all merges and shards."""
        return READS_PER_RANGE * self._ranges(self.merges)

    @property
    def moved_bytes(self) -> int:
        """What is read and written: by the sort, by each merge, and for the shards."""
        return self.store_bytes * 2 * (2 + len(self.merges))

    @property
    def scratch_bytes(self) -> int:
        """The sorted runs at one time: a merge removes those that it has read when all of them are merged."""
        return self.store_bytes * (2 if self.merges else 1)

    @property
    def memory_bytes(self) -> int:
        """What a worker holds: its libraries, and the documents of a run, as they were read and in their new order."""
        return WORKER_OWN_BYTES + 2 * self.run_bytes

    def _runs_read(self, merges: tuple[int, ...]) -> int:
        return -(-self.runs // math.prod(merges))

    def _ranges(self, merges: tuple[int, ...]) -> int:
        reads, slices = -(-self.store_bytes // self.read_bytes), math.prod(merges)
        return self.runs * sum(merges) + self._runs_read(merges) * (reads + slices - 1)


@dataclass(frozen=True, slots=True)
class Level:
    """The sorted runs that one pass over all documents writes.

    Each has the documents of a group of neighboring parts whose keys are in one of `slices` ranges of equal size. Its
    index has the bins of this range, of `bins` in all, for each stream.
    """

    first: int
    groups: int
    slices: int
    bins: int

    @property
    def runs(self) -> range:
        """The numbers of the runs."""
        return range(self.first, self.first + self.groups * self.slices)

    @property
    def bins_in_run(self) -> int:
        """The bins of a run, for each stream."""
        return self.bins // self.slices

    def slice_of(self, run: int) -> int:
        """Return which range of keys a run has."""
        return (run - self.first) % self.slices

    def ranges(self, groups: range, stream: int, bins: range) -> list[tuple[int, int, int]]:
        """Return where the documents of some groups and bins are: runs, each with the bins of its index.

        Documents of one key are in the order of their parts.
        """
        width = self.bins_in_run
        return [
            (
                self.first + group * self.slices + slice_,
                stream * width + max(bins.start - slice_ * width, 0),
                stream * width + min(bins.stop - slice_ * width, width),
            )
            for slice_ in range(bins.start // width, -(-bins.stop // width))
            for group in groups
        ]


@dataclass(frozen=True, slots=True)
class Shuffle:
    """How a shuffle is stored: the token type, and its levels of sorted runs, which are numbered consecutively."""

    levels: tuple[Level, ...]
    dtype: str

    @classmethod
    def of(cls, runs: int, bins: int, merges: tuple[int, ...], dtype: str) -> Shuffle:
        """Return the levels of so many runs that are merged. A level that is merged counts what each merge takes."""
        slices = list(itertools.accumulate((1, *merges), operator.mul))
        groups = [-(-runs // fan_in) for fan_in in slices]
        first = [0, *itertools.accumulate(map(operator.mul, groups, slices))]
        return cls(tuple(map(Level, first, groups, slices, [*slices[1:], bins])), dtype)

    @property
    def runs(self) -> int:
        """The number of runs of all levels."""
        return self.levels[-1].runs.stop

    def level_of(self, run: int) -> int:
        """Return the level of a run."""
        return next(number for number, level in enumerate(self.levels) if run in level.runs)

    def merges(self, number: int) -> list[tuple[int, int, int]]:
        """Return the runs of a level, each with the groups of the level before that it is merged from."""
        before, level = self.levels[number - 1], self.levels[number]
        fan_in = level.slices // before.slices
        starts = [index // level.slices * fan_in for index in range(len(level.runs))]
        return [(run, start, min(start + fan_in, before.groups)) for run, start in zip(level.runs, starts, strict=True)]

    def done(self, there: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return which runs need not be written, from those that exist: also those that are merged."""
        is_done = there.copy()
        for before, level in reversed(list(itertools.pairwise(self.levels))):
            fan_in = level.slices // before.slices
            merged = is_done[level.first : level.runs.stop].reshape(level.groups, before.slices, fan_in).all(axis=2)
            is_done[before.first : level.first] |= np.repeat(merged, fan_in, axis=0)[: before.groups].ravel()
        return is_done

    def tokens(self, sorted_tokens: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return about how many tokens each run has, from those of the first level."""
        counts = np.array(sorted_tokens, np.int64)
        groups = [np.add.reduceat(counts, np.arange(0, len(counts), level.slices)) for level in self.levels]
        pairs = zip(groups, self.levels, strict=True)
        return np.concatenate([np.repeat(tokens // level.slices, level.slices) for tokens, level in pairs])
