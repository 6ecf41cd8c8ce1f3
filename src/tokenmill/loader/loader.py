"""The loader: batches of sequences from stores, each a pure function of its step."""

from __future__ import annotations

import functools
import itertools
import operator
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, SupportsIndex

from tokenmill.errors import UsageError
from tokenmill.humanize import count
from tokenmill.loader.batches import DEFAULT_FIELDS, Batch, Field, Span, SpanContent, fill, needs_documents, read_span
from tokenmill.loader.index import Stream
from tokenmill.loader.order import Shuffle
from tokenmill.loader.packing import Packing
from tokenmill.loader.parts import LoaderParts
from tokenmill.loader.ranks import LoaderRank
from tokenmill.loader.source import LoaderSource
from tokenmill.loader.split_table import Split, open_split
from tokenmill.loader.stage import Stage
from tokenmill.loader.state import ORDER_VERSION, check_state, encode_identity
from tokenmill.storage import io_threads
from tokenmill.store.reader import Store

# The grain, unless the sequences do not divide it: the longest sequence that most trainings come to.
DEFAULT_GRAIN = 8192

# Tokens that are fetched ahead from an object store.
PREFETCH_TOKENS = 1 << 20

# How many characters of a store's digest are in a state: 64 bits.
DIGEST_CHARACTERS = 16


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


class Loader:
    """Batches of token sequences from one store or several, in an order that is computed and never stored.

    `loader[step]` is the batch of a step: always the same, whenever and wherever it is asked for. A `for` loop takes
    the batches from the cursor on and ends after `len(loader)` steps of a pass; the next loop continues with the next
    pass, which has another order. A batch is a dict of NumPy arrays. With several ranks it has the rows of this rank.
    A loader can be pickled: another process opens the same stores.
    """

    def __init__(self, options: LoaderOptions, rank: LoaderRank, sequences: int = 0) -> None:
        self.options = options
        self.rank = rank
        self._check_rank()
        self._sources = [_open_source(options, store) for store in _open_stores(options.stores)]
        counts = tuple(source.tokens // options.sequence_tokens for source in self._sources)
        self._stage = Stage(options.sequence_tokens, counts, (0,) * len(counts))
        self.is_remote = any(source.stream.is_remote for source in self._sources)
        self._cursor = sequences

    @property
    def sequences(self) -> int:
        """The number of sequences in an epoch, over all ranks."""
        return self._stage.round_sequences

    @property
    def tokens(self) -> int:
        """The number of tokens in an epoch, over all ranks."""
        return sum(source.tokens for source in self._sources)

    @property
    def tail_tokens(self) -> int:
        """The tokens that no epoch has, because they fill no grain at the end of their store."""
        return sum(source.tail_tokens for source in self._sources)

    def __len__(self) -> int:
        """The number of batches in a pass: `epochs` epochs. A rest that fills no batch begins the next pass."""
        return max(1, self.options.epochs * self.sequences // self.options.batch_sequences)

    def __getitem__(self, step: SupportsIndex) -> Batch:
        index = operator.index(step)
        if index < 0:
            raise IndexError(f"step {index:,} is out of range: steps are counted from 0")
        start, (first, last) = index * self.options.batch_sequences, self.rank.rows(self.options.batch_sequences)
        return self.rows(start + first, start + last)

    def __iter__(self) -> Iterator[Batch]:
        size = self.options.batch_sequences
        for batch in self.batches(self._cursor, self.pass_end(self._cursor), size):
            self._cursor += size  # before the batch is given out: a state in the loop counts it
            yield batch

    def __repr__(self) -> str:
        stores = ", ".join(self.options.stores)
        sequences = f"{count(self.sequences, 'sequence')} of {self.options.sequence_tokens:,} tokens"
        return f"<Loader {stores}: {sequences}, {count(len(self), 'step')}, {self.rank}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.options, self.rank, self._cursor)

    def state_dict(self) -> dict[str, Any]:
        """The state: the sequences given out over all ranks, and the choices that decided which. Equal on all ranks."""
        return {"sequences": self._cursor, "digest": encode_identity(self.identity())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a state was taken. The number of ranks, of workers and of sequences in a batch may differ.

        Raises UsageError if this loader would have given out other sequences until then, and says what differs.
        """
        self._cursor = check_state(state, self.identity())

    def identity(self) -> dict[str, str]:
        """The choices that decide which sequence has which number, by the names of the parameters."""
        options = self.options
        return {
            "order": ORDER_VERSION,
            "stores": ",".join(source.order.store[:DIGEST_CHARACTERS] for source in self._sources),
            "seed": str(options.seed),
            "val": options.val or "none",
            "split": options.split if options.val else "all",
            "shuffle": options.shuffle,
            "grain": str(options.grain),
            "sequence_tokens": str(options.sequence_tokens),
            "packing": options.packing,
        }

    def pass_end(self, sequence: int) -> int:
        """The sequence at which the pass ends that has this sequence."""
        length = len(self) * self.options.batch_sequences
        return (sequence // length + 1) * length

    def batches(self, first: int, last: int, stride: int) -> Iterator[Batch]:
        """This rank's rows of the global batches that begin at sequences first, first + stride, ... before last.

        From an object store, the next batches are fetched meanwhile.
        """
        low, high = self.rank.rows(self.options.batch_sequences)
        tokens = (high - low) * self.options.sequence_tokens
        ahead = max(1, PREFETCH_TOKENS // tokens) if self.is_remote else 0
        queue: deque[tuple[Iterable[SpanContent], list[Span]]] = deque()
        for start in range(first, last, stride):
            spans = self.spans(start + low, start + high)
            queue.append((self._read(spans), spans))
            if len(queue) > ahead:
                yield self._fill(*queue.popleft(), high - low)
        while queue:
            yield self._fill(*queue.popleft(), high - low)

    def rows(self, first: int, last: int) -> Batch:
        """Sequences [first, last) of all ranks as a batch."""
        spans = self.spans(first, last)
        return self._fill(self._read(spans), spans, last - first)

    def _read(self, spans: list[Span]) -> Iterable[SpanContent]:
        """The contents of spans: read when they are taken, or, from an object store, all at once in the background."""
        read = functools.partial(read_span, with_documents=needs_documents(self.options.fields))
        return io_threads().map(read, spans) if self.is_remote else map(read, spans)

    def _fill(self, contents: Iterable[SpanContent], spans: list[Span], rows: int) -> Batch:
        return fill(contents, spans, (rows, self.options.sequence_tokens), self.options.fields)

    def spans(self, first: int, last: int) -> list[Span]:
        """The ranges of the streams that sequences [first, last) are made from, in order."""
        length = self.options.sequence_tokens
        is_packed = self.options.packing == "best-fit"
        if len(self._sources) == 1 and not is_packed:
            return self._sources[0].spans(first, last, length)
        rows: list[list[Span]] = [[]] * (last - first)
        for number, low, high, own in self._stage.sources_of(first, last):
            source = self._sources[number]
            for row, start in zip(own.tolist(), source.starts(low, high, length).tolist(), strict=True):
                span = Span(source.stream, start, start + length)
                rows[row] = source.packed_spans(start, length) if is_packed else [span]
        return list(itertools.chain.from_iterable(rows))

    def locate(self, step: int, row: int, position: int) -> tuple[str, int]:
        """The store of a token of a global batch, and the position of the token in the store.

        Args:
            step: The step of the batch, from 0.
            row: The row of the batch, over all ranks, from 0.
            position: The position in the row, from 0.
        """
        options = self.options
        limits = (("step", step, None), ("row", row, options.batch_sequences))
        for name, value, limit in (*limits, ("position", position, options.sequence_tokens)):
            if value < 0 or (limit is not None and value >= limit):
                raise UsageError(f"there is no {name} {value:,}", *([f"They are 0 to {limit - 1:,}."] if limit else []))
        sequence = step * options.batch_sequences + row
        for stream, start, stop, _ in self.spans(sequence, sequence + 1):
            if position < stop - start:
                return stream.store.directory, stream.store_position(start + position)
            position -= stop - start
        raise AssertionError("a sequence has all of its tokens")

    def _check_rank(self) -> None:
        sequences, rank = self.options.batch_sequences, self.rank
        if sequences % rank.world_size:
            raise UsageError(
                f"a batch of {count(sequences, 'sequence')} cannot be divided among {rank.world_size} ranks",
                f"ranks        from {rank.origin}",
                f"Give batch_sequences as a multiple of {rank.world_size}: it counts the sequences of all ranks.",
            )


def _open_stores(directories: tuple[str, ...]) -> list[Store]:
    """Open the stores. Refuses stores of different tokenizers, and a store that is given twice."""
    stores = [Store(directory) for directory in directories]
    first = stores[0]
    for number, store in enumerate(stores[1:], 1):
        for name, before, now in first.job.differences(store.job):
            if name in {"tokenizer", "split pattern", "--bos", "--eot"}:
                raise UsageError(
                    f"the stores have different tokens: another {name}",
                    f"{before:<16} {first.directory}",
                    f"{now:<16} {store.directory}",
                )
        twice = next((other for other in stores[:number] if other.digest == store.digest), None)
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
