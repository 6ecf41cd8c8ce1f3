"""Sequences of one store or several by their numbers: which ranges of the streams they are, and their tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tokenmill.choices import Field, Packing, Shuffle, Split
from tokenmill.errors import UsageError
from tokenmill.humanize import count
from tokenmill.sources import splits_of
from tokenmill.store.chain import StoreVersion
from tokenmill.store.held_out import MAX_DOCUMENTS, MAX_PARTS, require_split, split_name, val_advice
from tokenmill.store.kept import check_where
from tokenmill.store.reader import Store
from tokenmill.tokenization import document_hash
from tokenmill.training.batches import DEFAULT_FIELDS, Batch, Span, fill, needs_documents, read_spans
from tokenmill.training.index import Stream
from tokenmill.training.mixture import Mixture
from tokenmill.training.packing import PackedWindows
from tokenmill.training.parts import LoaderParts
from tokenmill.training.prefetch import DEFAULT_PREFETCH_BYTES, Prefetcher
from tokenmill.training.rows import BestFitRows, CutRows, Rows, Waste, WholeRows
from tokenmill.training.source import LoaderSource
from tokenmill.training.split_table import Choice, open_split

# The grain, unless the sequences do not divide it: the longest sequence that most trainings come to.
DEFAULT_GRAIN = 8192

# Choices of a job that decide what a token means.
TOKEN_CHOICES = ("tokenizer", "split pattern", "--bos", "--eot")


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    """The choices of a loader, checked and with every default filled in.

    `val` is a fraction as text, `split:NAME`, or None.
    """

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
    prefetch_bytes: int = DEFAULT_PREFETCH_BYTES


class SequenceReader:
    """The sequences of a training, numbered from 0 on through all epochs, over all ranks."""

    def __init__(self, options: LoaderOptions) -> None:
        self.options = options
        stores = open_stores(options.stores)
        require_split(options.val, (split for store in stores for split in splits_of(store.sources)))
        before, chosen = first_documents(stores), chosen_stores(options, stores)
        windows = PackedWindows()
        self.sources = [
            open_source(options, store, before[store], source, windows) for source, store in enumerate(chosen)
        ]
        self.names = [store.directory for store in chosen]
        counts = tuple(source.tokens // options.sequence_tokens for source in self.sources)
        self.mixture = Mixture(counts)
        self.is_remote = any(source.stream.is_remote for source in self.sources)

    @property
    def waste(self) -> Waste:
        """What an epoch of all sources leaves out, and its padding."""
        return sum((source.rows.waste for source in self.sources), Waste())

    def rows(self, first: int, last: int) -> Batch:
        """Sequences [first, last) as a batch."""
        (batch,) = self.batches([(first, last)])
        return batch

    def batches(self, ranges: Iterable[tuple[int, int]]) -> Iterator[Batch]:
        """A batch for each range of sequences. From an object store, the next batches are fetched meanwhile."""
        planned = ((self.spans(first, last), (last - first, self.row_tokens(first))) for first, last in ranges)
        if not self.is_remote:
            for spans, shape in planned:
                self.look()
                yield fill(read_spans(spans), spans, shape, self.options.fields)
            return
        with Prefetcher(planned, self.options.prefetch_bytes, needs_documents(self.options.fields)) as prefetcher:
            for batch in prefetcher:
                self.look()
                yield fill(batch.contents(), batch.spans, batch.shape, self.options.fields)

    def look(self) -> int:
        """Look for documents that were erased meanwhile, at most once a second. Returns how many changes are known."""
        for source in self.sources:
            source.stream.source_parts.look()
        return sum(version.number for version in self.versions().values())

    def versions(self) -> dict[str, StoreVersion]:
        """The versions of the stores, by their identities."""
        versions: dict[str, StoreVersion] = {}
        for source in self.sources:
            parts = source.stream.source_parts
            versions[parts.store.identity] = max(parts.version, versions.get(parts.store.identity, StoreVersion()))
        return versions

    def require_versions(self, versions: Mapping[str, StoreVersion]) -> None:
        """Raise CorruptStore if a store is older than a state, or was changed by itself."""
        for source in self.sources:
            parts = source.stream.source_parts
            if (version := versions.get(parts.store.identity)) is not None:
                parts.require(version)

    def row_tokens(self, _sequence: int) -> int:
        """The tokens of a sequence."""
        return self.options.sequence_tokens

    def spans(self, first: int, last: int) -> list[Span]:
        """The ranges of the streams that sequences [first, last) are made from, in order."""
        length = self.options.sequence_tokens
        if len(self.sources) == 1:
            return self.sources[0].spans(first, last, length)
        rows: list[list[Span]] = [[]] * (last - first)
        for number, low, high, own in self.mixture.ranges(first, last):
            source = self.sources[number]
            for row, start in zip(own.tolist(), source.starts(low, high, length).tolist(), strict=True):
                rows[row] = source.rows.spans(start, start + length, length)
        return list(itertools.chain.from_iterable(rows))

    def locate(self, sequence: int, position: int) -> tuple[str, int]:
        """The store of a token of a sequence, and the position of the token in the store."""
        for span in self.spans(sequence, sequence + 1):
            if position < span.stop - span.start:
                if span.is_padding:
                    raise UsageError("there is no token at this position: it is padding at the end of a sequence")
                return span.stream.store.directory, span.stream.store_position(span.start + position)
            position -= span.stop - span.start
        raise IndexError(f"a sequence has {self.row_tokens(sequence):,} tokens")


def open_stores(directories: tuple[str, ...]) -> list[Store]:
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


def first_documents(stores: Sequence[Store]) -> dict[Store, int]:
    """The documents before those of each store, if all are read as one."""
    return dict(zip(stores, itertools.accumulate(map(len, stores), initial=0), strict=False))


def chosen_stores(options: LoaderOptions, stores: list[Store]) -> list[Store]:
    """The stores that have documents of the chosen split. A split of the sources may be all or nothing of a store."""
    name = split_name(options.val)
    if name is None:
        return stores
    chosen = [
        store
        for store in stores
        if any((split == name) == (options.split == "val") for split in splits_of(store.sources))
    ]
    if not chosen:
        raise UsageError(
            f"val {options.val} holds out all documents",
            f"stores       {', '.join(store.directory for store in stores)}",
            "Remove these stores, or hold out another split.",
        )
    return chosen


def open_source(  # noqa: PLR0913, PLR0917 - a store, its place among the others, and what all share
    options: LoaderOptions,
    store: Store,
    first_document: int,
    number: int,
    windows: PackedWindows,
    where: str | None = None,
) -> LoaderSource:
    """Open a store, or its documents that satisfy `where`, as a source. Refuses one that is smaller than one grain."""
    parts = LoaderParts(store)
    if where is not None:
        where = check_where(where, store.job.keep, store.directory)
    choice = Choice(options.val, options.split, where)
    is_whole = options.val is None and where is None
    stream = Stream(parts, None if is_whole else open_split(parts, choice), number, first_document)
    source = LoaderSource(stream, _rows(options, stream, choice, windows), options.grain, options.shuffle, options.seed)
    if not stream.tokens and options.val is not None and split_name(options.val) is None and where is None:
        raise _empty_split(options, parts)
    if not source.order.grains:
        split = f" of split {options.split}" if options.val is not None else ""
        split += f" where {where}" if where is not None else ""
        if source.rows.waste.long_documents:
            raise UsageError(
                f"all documents are longer than a sequence of {options.sequence_tokens:,} tokens",
                f"store        {store.directory}, {count(stream.tokens, 'token')}{split}",
                "Give a larger sequence_tokens, or packing best-fit, which cuts documents.",
            )
        raise UsageError(
            f"the store is smaller than one grain of {options.grain:,} tokens",
            f"store        {store.directory}, {count(stream.tokens, 'token')}{split}",
            "Give a smaller grain, a multiple of sequence_tokens: an epoch has whole grains.",
        )
    return source


def _rows(options: LoaderOptions, stream: Stream, choice: Choice, windows: PackedWindows) -> Rows:
    """The rows that the documents of a stream fill."""
    if options.packing == "whole":
        return WholeRows(stream, choice, options.sequence_tokens, windows)
    return CutRows(stream) if options.packing == "concat" else BestFitRows(stream, options.grain, windows)


def _empty_split(options: LoaderOptions, parts: LoaderParts) -> UsageError:
    """The error for a split without documents, with a `val` that gives documents to both splits."""
    store = parts.store
    manifest = store.manifest
    advice = ""
    if int(manifest["documents"].to_numpy().sum()) <= MAX_DOCUMENTS and len(manifest) <= MAX_PARTS:
        identities = store.sources["identity"].to_numpy()
        units = range(len(manifest))
        positions = [document_hash.val_positions(identities, *parts.origins(part)) for part in units]
        lengths = [np.diff(parts.offsets(part)) for part in units]
        advice = val_advice(parts.folder, np.concatenate(positions), np.concatenate(lengths))
    return UsageError(
        f"the split {options.split} of the store has no documents",
        f"store        {store.directory}",
        f"val          {options.val} of {count(len(store), 'document')}",
        *([f"{advice[0].upper()}{advice[1:]}."] if advice else []),
    )
