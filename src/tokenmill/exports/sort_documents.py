"""Sort the documents of an export and count them, so that its shards can be planned."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.executors.fan_out import FanOut
from tokenmill.executors.ranks import RankShare
from tokenmill.exports import sorted_runs
from tokenmill.exports.job import RUNS, is_complete
from tokenmill.exports.shards import Blocks, Counts
from tokenmill.exports.write_shard import CheckSortedRun, CountStreams, ExportContext, FindDocumentEdges, WriteSortedRun
from tokenmill.storage import Folder, folder_at, prefetch_map

# Small items, such as records, that a worker gets at a time.
ITEMS_PER_BATCH = 64

T = TypeVar("T")


@dataclass(slots=True)
class Ordering:
    """Counts the documents of an export, and sorts them first if the export is shuffled. Ranks share the sorting."""

    context: ExportContext
    manifest: pa.Table
    fan_out: FanOut
    rank_share: RankShare | None = None
    _is_sorted: bool = False

    def blocks(self) -> Blocks:
        """Return the counts of each block and stream."""
        if self.context.frozen.job.shuffle is not None:
            self.sort()
            return self._count_bins()
        if self.context.frozen.job.streams > 1:
            return self._count_parts()
        return Blocks(*(self.manifest[name].to_numpy()[np.newaxis] for name in ("documents", "tokens")))

    def resolve(self, blocks: Blocks, stream: int, positions: Counts) -> Counts:
        """Move positions of a stream to the next starts of documents."""
        ends = blocks.ends(stream)
        block = np.minimum(np.searchsorted(ends, positions), len(ends) - 1)
        before = (ends - blocks.tokens[stream])[block]
        queries = list(zip(block.tolist(), before.tolist(), positions.tolist(), strict=True))
        items = [(stream, tuple(chunk)) for chunk in chunks(queries)]
        done = self.fan_out.run(FindDocumentEdges(self.context), items, lambda _: "the edges of shards")
        edges = {outcome.item: outcome.value for outcome in done}
        return np.concatenate([edges[item] for item in items])

    def _count_parts(self) -> Blocks:
        """Count parts as blocks. Workers hash each document to get its stream."""
        tokens = self.manifest["tokens"].to_numpy()
        counts = np.zeros((2, self.context.frozen.job.streams, len(tokens)), np.int64)
        items = [tuple(chunk) for chunk in chunks(range(len(tokens)))]
        self.fan_out.begin("split", int(tokens.sum()))
        for done in self.fan_out.run(CountStreams(self.context), items, lambda item: f"parts {item[0]} to {item[-1]}"):
            counts[:, :, list(done.item)] = done.value
            self.fan_out.advance(int(tokens[list(done.item)].sum()))
        return Blocks(*counts)

    def sort(self) -> None:
        """Write the missing and damaged sorted runs of a shuffle, once. Does nothing without a shuffle.

        Runs are merged level by level, and those of a level are removed when the next one is complete. A rank compares
        only its own runs with their checksums. It writes those of other ranks that are missing.
        """
        if self.context.frozen.job.shuffle is None or self._is_sorted:
            return
        self._is_sorted = True
        folder, shuffle = folder_at(self.context.out), self.context.shuffle
        folder.create(RUNS)
        if self.rank_share is None:
            folder.remove_temporaries(RUNS)
        for done in self.fan_out.run(CheckSortedRun(self.context), self._own_runs(), lambda run: f"sorted run {run}"):
            if not done.value:
                sorted_runs.discard(folder, done.item)
        part_tokens = self.manifest["tokens"].to_numpy()
        tokens = shuffle.tokens([int(part_tokens[start:stop].sum()) for _, start, stop in self._spans()])
        for number, level in enumerate(shuffle.levels):
            self._write_level(folder, number, tokens)
            merged = [run for run in self._own_runs() if run < level.first]
            list(prefetch_map(folder, functools.partial(sorted_runs.discard, folder), merged))

    def _own_runs(self) -> list[int]:
        """The runs that exist, of a rank only those that it writes first."""
        there = sorted_runs.committed(folder_at(self.context.out), self.context.shuffle.runs)
        own = there if self.rank_share is None else there & self.rank_share.stripes(len(there))
        return np.flatnonzero(own).tolist()

    def _write_level(self, folder: Folder, number: int, tokens: Counts) -> None:
        """Write the missing runs of a level, whose tokens are about these."""
        shuffle = self.context.shuffle
        level = shuffle.levels[number]

        def list_done() -> npt.NDArray[np.bool_]:
            return shuffle.done(sorted_runs.committed(folder, shuffle.runs))

        runs = np.array(level.runs, np.int64)
        missing = runs[~list_done()[runs]]
        if not len(missing):
            return
        total = int(tokens[runs].sum())
        self.fan_out.begin("merge" if number else "shuffle", total, total - int(tokens[missing].sum()))
        order: Iterable[int] = missing
        if self.rank_share is not None:
            order = self.rank_share.order(
                missing,
                list_done(),
                lambda: list_done() | is_complete(folder),  # a complete export needs no runs
                lambda run: self.fan_out.skip(int(tokens[run])),
            )
        tasks = shuffle.merges(number) if number else self._spans()
        wanted = (tasks[run - level.first] for run in order)
        for done in self.fan_out.run(WriteSortedRun(self.context), wanted, lambda task: f"sorted run {task[0]}"):
            self.fan_out.advance(int(tokens[done.item[0]]))

    def _count_bins(self) -> Blocks:
        """Count ranges of keys as blocks, from the indexes of the sorted runs of the last level."""
        folder, frozen, level = folder_at(self.context.out), self.context.frozen, self.context.shuffle.levels[-1]
        documents, tokens = np.zeros((2, frozen.job.streams, level.slices, level.bins_in_run), np.int64)
        read = functools.partial(sorted_runs.counts, folder, frozen.work_digest())
        for run, counts in zip(level.runs, prefetch_map(folder, read, level.runs), strict=True):
            for total, more in zip((documents, tokens), counts, strict=True):
                total[:, level.slice_of(run)] += more.reshape(frozen.job.streams, -1)
        return Blocks(*(total.reshape(frozen.job.streams, -1) for total in (documents, tokens)))

    def _spans(self) -> list[tuple[int, int, int]]:
        return sorted_runs.spans(self.manifest["tokens"].to_numpy(), self.context.frozen.run_tokens)


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the items in slices of ITEMS_PER_BATCH."""
    for start in range(0, len(items), ITEMS_PER_BATCH):
        yield items[start : start + ITEMS_PER_BATCH]
