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
from tokenmill.exports.write_shard import CheckSortedRun, CountStreams, ExportContext, FindDocumentEdges, SortDocuments
from tokenmill.storage import folder_at, prefetch_map

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

        A rank compares only its own runs with their checksums. It writes those of other ranks that are missing.
        """
        if self.context.frozen.job.shuffle is None or self._is_sorted:
            return
        self._is_sorted = True
        folder, spans = folder_at(self.context.out), self._spans()
        folder.create(RUNS)
        if self.rank_share is None:
            folder.remove_temporaries(RUNS)
        there = sorted_runs.committed(folder, len(spans))
        is_own = np.ones(len(spans), bool) if self.rank_share is None else self.rank_share.stripes(len(spans))
        own = np.flatnonzero(there & is_own).tolist()
        checked = self.fan_out.run(CheckSortedRun(self.context), own, lambda run: f"sorted run {run}")
        intact = there & ~is_own
        intact[[done.item for done in checked if done.value]] = True
        missing = np.flatnonzero(~intact)
        if not len(missing):
            return
        part_tokens = self.manifest["tokens"].to_numpy()
        tokens = np.array([int(part_tokens[start:stop].sum()) for _, start, stop in spans])
        self.fan_out.begin("shuffle", int(tokens.sum()), int(tokens[intact].sum()))
        order: Iterable[int] = missing
        if self.rank_share is not None:
            is_damaged = there & ~intact

            def list_done() -> npt.NDArray[np.bool_]:
                is_done = sorted_runs.committed(folder, len(spans)) & ~is_damaged
                return is_done | is_complete(folder)  # a complete export needs no runs

            order = self.rank_share.order(missing, intact, list_done, lambda run: self.fan_out.skip(int(tokens[run])))
        tasks = (spans[run] for run in order)
        for done in self.fan_out.run(
            SortDocuments(self.context), tasks, lambda span: f"parts {span[1]} to {span[2] - 1}"
        ):
            self.fan_out.advance(done.value)

    def _count_bins(self) -> Blocks:
        """Count ranges of keys as blocks, from the indexes of the sorted runs."""
        folder, frozen = folder_at(self.context.out), self.context.frozen
        documents, tokens = np.zeros((2, frozen.job.streams, frozen.bins), np.int64)
        numbers = [run for run, _, _ in self._spans()]
        read = functools.partial(sorted_runs.counts, folder, frozen.work_digest())
        for more_documents, more_tokens in prefetch_map(folder, read, numbers):
            documents += more_documents.reshape(documents.shape)
            tokens += more_tokens.reshape(documents.shape)
        return Blocks(documents, tokens)

    def _spans(self) -> list[tuple[int, int, int]]:
        return sorted_runs.spans(self.manifest["tokens"].to_numpy(), self.context.frozen.run_tokens)


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the items in slices of ITEMS_PER_BATCH."""
    for start in range(0, len(items), ITEMS_PER_BATCH):
        yield items[start : start + ITEMS_PER_BATCH]
