"""The documents of an export brought into their order and counted, so that shards can be cut from them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa

from tokenmill.executors.fan_out import FanOut
from tokenmill.exports import sorted_runs
from tokenmill.exports.job import RUNS
from tokenmill.exports.shards import Blocks, Counts
from tokenmill.exports.write_shard import CountStreams, ExportContext, FindDocumentEdges, SortDocuments
from tokenmill.storage import folder_at, prefetch_map

ITEMS_PER_BATCH = 64
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Ordering:
    """One export's documents: counted as they are in the store, or sorted first if they are to be shuffled."""

    context: ExportContext
    manifest: pa.Table
    fan_out: FanOut

    def blocks(self) -> Blocks:
        """What each block holds for each stream."""
        if self.context.frozen.job.shuffle is not None:
            self.sort()
            return self._binned()
        if self.context.frozen.job.streams > 1:
            return self._counted()
        return Blocks(*(self.manifest[name].to_numpy()[np.newaxis] for name in ("documents", "tokens")))

    def resolve(self, blocks: Blocks, stream: int, positions: Counts) -> Counts:
        """Move positions of a stream to where the next documents start."""
        ends = blocks.ends(stream)
        block = np.minimum(np.searchsorted(ends, positions), len(ends) - 1)
        before = (ends - blocks.tokens[stream])[block]
        places = list(zip(block.tolist(), before.tolist(), positions.tolist(), strict=True))
        items = [(stream, tuple(chunk)) for chunk in chunks(places)]
        done = self.fan_out.run(FindDocumentEdges(self.context), items, lambda _: "the edges of shards")
        found = {outcome.item: outcome.value for outcome in done}
        return np.concatenate([found[item] for item in items])

    def _counted(self) -> Blocks:
        """Parts as blocks; a look at every document tells which stream it is in."""
        tokens = self.manifest["tokens"].to_numpy()
        found = np.zeros((2, self.context.frozen.job.streams, len(tokens)), np.int64)
        items = [tuple(chunk) for chunk in chunks(range(len(tokens)))]
        self.fan_out.begin("split", int(tokens.sum()))
        for done in self.fan_out.run(CountStreams(self.context), items, lambda item: f"parts {item[0]} to {item[-1]}"):
            found[:, :, list(done.item)] = done.value
            self.fan_out.advance(int(tokens[list(done.item)].sum()))
        return Blocks(*found)

    def sort(self) -> None:
        """Sort the documents into runs, if there is a shuffle: those runs that are not there yet."""
        if self.context.frozen.job.shuffle is None:
            return
        folder, spans = folder_at(self.context.out), self._spans()
        folder.create(RUNS)
        folder.remove_temporaries(RUNS)
        there = sorted_runs.committed(folder, len(spans))
        missing = [span for span in spans if not there[span[0]]]
        if not missing:
            return
        tokens = self.manifest["tokens"].to_numpy()
        total = int(tokens.sum())
        self.fan_out.begin("shuffle", total, total - sum(int(tokens[start:stop].sum()) for _, start, stop in missing))
        for done in self.fan_out.run(
            SortDocuments(self.context), missing, lambda span: f"parts {span[1]} to {span[2] - 1}"
        ):
            self.fan_out.advance(done.value)

    def _binned(self) -> Blocks:
        """Ranges of keys as blocks, counted in the runs."""
        folder, frozen = folder_at(self.context.out), self.context.frozen
        documents, counted = np.zeros((2, frozen.job.streams, frozen.bins), np.int64)
        numbers = [run for run, _, _ in self._spans()]
        for more_documents, more_tokens in prefetch_map(folder, functools.partial(sorted_runs.counts, folder), numbers):
            documents += more_documents.reshape(documents.shape)
            counted += more_tokens.reshape(documents.shape)
        return Blocks(documents, counted)

    def _spans(self) -> list[tuple[int, int, int]]:
        return sorted_runs.spans(self.manifest["tokens"].to_numpy(), self.context.frozen.run_tokens)


def chunks(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Some of the items at a time."""
    for start in range(0, len(items), ITEMS_PER_BATCH):
        yield items[start : start + ITEMS_PER_BATCH]
