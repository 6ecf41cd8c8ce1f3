"""Sequences of one store or several by their numbers: which ranges of the streams they are, and their tokens."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass

from tokenmill.errors import UsageError
from tokenmill.humanize import count
from tokenmill.loader.batches import DEFAULT_FIELDS, Batch, Field, Span, SpanContent, fill, needs_documents, read_span
from tokenmill.loader.index import Stream
from tokenmill.loader.order import Shuffle
from tokenmill.loader.packing import Packing
from tokenmill.loader.parts import LoaderParts
from tokenmill.loader.source import LoaderSource
from tokenmill.loader.split_table import Split, open_split
from tokenmill.loader.stage import Stage
from tokenmill.storage import io_threads
from tokenmill.store.reader import Store

# The grain, unless the sequences do not divide it: the longest sequence that most trainings come to.
DEFAULT_GRAIN = 8192

# Tokens that are fetched ahead from an object store.
PREFETCH_TOKENS = 1 << 20

# Choices of a job that decide what a token means.
TOKEN_CHOICES = ("tokenizer", "split pattern", "--bos", "--eot")


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """The choices of a loader, checked and with every default filled in. `val` is a fraction as text, or None."""

    stores: tuple[str, ...]
    sequence_tokens: int
    batch_sequences: int
    grain: int
    seed: int
    val: str | None
    split: Split
    shuffle: Shuffle
    packing: Packing
    epochs: int = 1
    fields: tuple[Field, ...] = DEFAULT_FIELDS


class SequenceReader:
    """The sequences of a training, numbered from 0 on through all epochs, over all ranks."""

    def __init__(self, options: LoaderOptions) -> None:
        self.options = options
        self.sources = [_open_source(options, store) for store in _open_stores(options.stores)]
        counts = tuple(source.tokens // options.sequence_tokens for source in self.sources)
        self.stage = Stage(options.sequence_tokens, counts, (0,) * len(counts))
        self.is_remote = any(source.stream.is_remote for source in self.sources)

    def rows(self, first: int, last: int) -> Batch:
        """Sequences [first, last) as a batch."""
        (batch,) = self.batches([(first, last)])
        return batch

    def batches(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Batch]:
        """A batch for each range of sequences. From an object store, the next batches are fetched meanwhile."""
        queue: deque[tuple[list[Span], list[Future[SpanContent]], int]] = deque()
        try:
            for first, last in ranges:
                spans = self.spans(first, last)
                futures = [io_threads().submit(self._read, span) for span in spans] if self.is_remote else []
                queue.append((spans, futures, last - first))
                ahead = PREFETCH_TOKENS // ((last - first) * self.options.sequence_tokens) + 1 if self.is_remote else 0
                if len(queue) > ahead:
                    yield self._fill(*queue.popleft())
            while queue:
                yield self._fill(*queue.popleft())
        finally:  # a loop that is left has requests that nothing waits for
            for future in itertools.chain.from_iterable(futures for _, futures, _ in queue):
                future.cancel()

    def spans(self, first: int, last: int) -> list[Span]:
        """The ranges of the streams that sequences [first, last) are made from, in order."""
        length = self.options.sequence_tokens
        is_packed = self.options.packing == "best-fit"
        bases = [start // length for start in self.stage.starts]
        if len(self.sources) == 1 and not is_packed:
            return self.sources[0].spans(bases[0] + first, bases[0] + last, length)
        rows: list[list[Span]] = [[]] * (last - first)
        for number, low, high, own in self.stage.sources_of(first, last):
            source, base = self.sources[number], bases[number]
            for row, start in zip(own.tolist(), source.starts(base + low, base + high, length).tolist(), strict=True):
                span = Span(source.stream, start, start + length)
                rows[row] = source.packed_spans(start, length) if is_packed else [span]
        return list(itertools.chain.from_iterable(rows))

    def locate(self, sequence: int, position: int) -> tuple[str, int]:
        """The store of a token of a sequence, and the position of the token in the store."""
        for stream, start, stop, _ in self.spans(sequence, sequence + 1):
            if position < stop - start:
                return stream.store.directory, stream.store_position(start + position)
            position -= stop - start
        raise IndexError(f"a sequence has {self.options.sequence_tokens:,} tokens")

    def _read(self, span: Span) -> SpanContent:
        return read_span(span, with_documents=needs_documents(self.options.fields))

    def _fill(self, spans: list[Span], futures: list[Future[SpanContent]], rows: int) -> Batch:
        contents = (future.result() for future in futures) if futures else map(self._read, spans)
        return fill(contents, spans, (rows, self.options.sequence_tokens), self.options.fields)


def _open_stores(directories: tuple[str, ...]) -> list[Store]:
    """Open the stores. Refuses stores of different tokenizers, and a store that is given twice."""
    stores = [Store(directory) for directory in directories]
    for number, store in enumerate(stores):
        first, own = stores[0].job.identity(), store.job.identity()
        for name in TOKEN_CHOICES:
            if first[name] != own[name]:
                raise UsageError(
                    f"the stores have different tokens: another {name}",
                    f"{first[name]:<16} {stores[0].directory}",
                    f"{own[name]:<16} {store.directory}",
                )
        twice = next((other for other in stores[:number] if other.identity == store.identity), None)
        if twice is not None:
            raise UsageError("two stores have the same parts", f"stores       {twice.directory}, {store.directory}")
    return stores


def _open_source(options: LoaderOptions, store: Store) -> LoaderSource:
    parts = LoaderParts(store)
    table = None if options.val is None else open_split(parts, float(options.val), options.split)
    stream = Stream(parts, table)
    source = LoaderSource(stream, options.grain, options.shuffle, options.seed)
    if not source.order.grains:
        split = f" of split {options.split}" if table is not None else ""
        raise UsageError(
            f"the store is smaller than one grain of {options.grain:,} tokens",
            f"store        {store.directory}, {count(stream.tokens, 'token')}{split}",
            "Give a smaller grain, a multiple of sequence_tokens: an epoch has whole grains.",
        )
    return source
