"""What workers do for an export: count, sort, write. Everything here happens inside a worker."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.exports import records, sorted_runs
from tokenmill.exports.documents import (
    DocumentRange,
    DocumentTable,
    PartDocuments,
    Shuffle,
    SortedRunDocuments,
    take_documents,
)
from tokenmill.exports.formats import find_format
from tokenmill.exports.formats.protocol import Content, Shard, ShardRecord, Tokens
from tokenmill.exports.job import ExportJob, FrozenExport
from tokenmill.exports.order import SplitAndShuffle
from tokenmill.exports.shards import Counts, ShardTask
from tokenmill.storage import Folder, folder_at, prefetch_map
from tokenmill.store import layout
from tokenmill.store.listed_parts import ListedParts
from tokenmill.store.part import PartContent, TokenArray


@dataclass(frozen=True, slots=True)
class ExportContext:
    """Where an export is made of what: the store, the export's directory, and what was frozen there."""

    store: str
    out: str
    frozen: FrozenExport
    shuffle: Shuffle
    batch_bytes: int
    sources_sha256: str

    @property
    def order(self) -> SplitAndShuffle:
        """The split and the shuffle."""
        return SplitAndShuffle.of(self.frozen.job, source_columns(self.store, self.sources_sha256)[1])

    def parts(self, parts: Iterable[int], *, content_too: bool) -> Iterator[PartContent]:
        """Some parts of the store, one after the other; with `content_too` what they hold is hashed."""
        return prefetch_map(folder_at(self.store), lambda part: self.open_part(part, content_too), parts)

    def open_part(self, part: int, content_too: bool) -> PartContent:
        """The part that the manifest of the exported store lists."""
        parts = ListedParts(self.store, self.frozen.job.store, self.shuffle.dtype, len(self.order.identities))
        return parts.open(part, content_too=content_too)[1]

    def documents(self, stream: int, first_block: int, last_block: int) -> DocumentRange:
        """The documents of some blocks."""
        blocks = range(first_block, last_block + 1)
        if self.frozen.job.shuffle is None:
            return PartDocuments(folder_at(self.store), self.order, self.open_part, stream, blocks)
        return SortedRunDocuments(folder_at(self.out), self.order, self.shuffle, stream, blocks)


@functools.lru_cache(maxsize=1)
def source_columns(store: str, _sources_sha256: str) -> tuple[pa.Array, npt.NDArray[np.uint64]]:
    """The paths and the identities of a store's sources; a worker may see another store at the same path later."""
    folder = folder_at(store)
    table = layout.read_sources(folder, layout.require_run(folder))
    return table["path"].combine_chunks(), table["identity"].to_numpy()


@dataclass(frozen=True, slots=True)
class CountStreams:
    """The function that counts the documents and tokens of each stream in some parts."""

    context: ExportContext

    def __call__(self, parts: tuple[int, ...]) -> tuple[Counts, Counts]:
        """Documents and tokens: a row for each stream, a column for each part."""
        order, streams = self.context.order, self.context.frozen.job.streams
        documents, tokens = np.zeros((2, streams, len(parts)), np.int64)
        for place, content in enumerate(self.context.parts(parts, content_too=False)):
            found = order.streams(content.source, content.row)
            found = np.zeros(len(content.row), np.uint8) if found is None else found
            documents[:, place] = np.bincount(found, minlength=streams)
            tokens[:, place] = np.bincount(found, np.diff(content.offsets), minlength=streams)
        return documents, tokens


@dataclass(frozen=True, slots=True)
class SortDocuments:
    """The function that makes a run of some parts."""

    context: ExportContext

    def __call__(self, task: tuple[int, int, int]) -> int:
        """Run number, first part, last part + 1; returns the tokens sorted."""
        run, start, stop = task
        job, bins, order = self.context.frozen.job, self.context.frozen.bins, self.context.order
        contents = list(self.context.parts(range(start, stop), content_too=True))
        origins = DocumentTable.concatenate(
            [DocumentTable(np.diff(each.offsets), each.source, each.row) for each in contents]
        )
        keys = order.keys(origins.source, origins.row)
        stream = order.streams(origins.source, origins.row)
        sorting = np.argsort(keys, kind="stable") if stream is None else np.lexsort((keys, stream))
        # There are 2^n bins, and a key's bin is its highest n bits.
        place = (keys >> np.uint64(65 - bins.bit_length())).astype(np.int64)
        if stream is not None:
            place += stream.astype(np.int64) * bins
        content = PartContent(
            take_documents([(each.tokens, each.offsets) for each in contents], sorting),
            np.concatenate([np.zeros(1, np.int64), np.cumsum(origins.lengths[sorting])]),
            origins.source[sorting],
            origins.row[sorting],
        )
        sorted_runs.publish_sorted_run(folder_at(self.context.out), run, content, place[sorting], bins * job.streams)
        return len(content.tokens)


@dataclass(frozen=True, slots=True)
class FindDocumentEdges:
    """The function that finds the document edges at or after positions of a stream."""

    context: ExportContext

    def __call__(self, task: tuple[int, tuple[tuple[int, int, int], ...]]) -> Counts:
        """The stream, and for each position its block, the tokens before the block, and itself."""
        stream, places = task
        resolved = []
        for (block, before), some in itertools.groupby(places, key=lambda place: place[:2]):
            lengths = self.context.documents(stream, block, block).origins.lengths
            edges = before + np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            resolved.append(edges[np.searchsorted(edges, [position for _, _, position in some])])
        return np.concatenate(resolved)


@dataclass(frozen=True, slots=True)
class WriteShard:
    """The function that writes one shard and then its record, which commits it."""

    context: ExportContext

    def __call__(self, task: ShardTask) -> ShardRecord:
        """A shard that has its record already is left alone: whoever published it died before telling.

        It may also be another machine, which may have come to the end, and have removed what is read here.
        """
        folder = folder_at(self.context.out)
        if records.exists(folder, task.shard):
            return records.read(folder, task.shard)
        try:
            return self._write(folder, task)
        except StoreError:
            if not records.exists(folder, task.shard):
                raise
            return records.read(folder, task.shard)

    def _write(self, folder: Folder, task: ShardTask) -> ShardRecord:
        job = self.context.frozen.job
        format_ = find_format(job.format)
        documents = self.context.documents(task.stream, task.first_block, task.last_block)
        origins, tokens, cut = self._content(task, documents)
        shard = shard_of(self.context, task)
        content = Content(origins.lengths, origins.source, origins.row, tokens)
        files = format_.write(folder, shard, content)
        folder.sync_directory(shard.folder)
        record = ShardRecord(
            shard=task.shard,
            split=task.split,
            number=task.number,
            start=task.start,
            documents=len(origins.lengths),
            begun=len(origins.lengths) - (cut > 0),
            cut=cut,
            tokens=task.tokens,
            files=files,
            export=job.digest(),
            documents_xxh3=records.documents_xxh3(origins),
        )
        records.publish(folder, record, origins)
        return record

    def _content(self, task: ShardTask, documents: DocumentRange) -> tuple[DocumentTable, Iterator[Tokens], int]:
        """The documents of the shard, their tokens, and how many tokens of the first are in the shard before."""
        job = self.context.frozen.job
        ends = task.before + np.cumsum(documents.origins.lengths)
        starts = ends - documents.origins.lengths
        held = (starts < task.stop) & (ends > task.start)
        empty = (starts == ends) & (starts >= task.start) & ((starts < task.stop) | task.final)
        inside = np.flatnonzero(held | empty)
        first, last = (int(inside[0]), int(inside[-1]) + 1) if len(inside) else (0, 0)
        origins = documents.origins.slice(first, last)
        lengths = np.minimum(ends[first:last], task.stop) - np.maximum(starts[first:last], task.start)
        if int(lengths.sum()) != task.tokens:
            raise CorruptStore(
                f"shard {task.shard} does not find its tokens",
                f"expected     {task.tokens:,}",
                f"found        {int(lengths.sum()):,}",
                "`tokenmill verify` tells whether the store is sound; then remove the export and start it again.",
            )
        cut = task.start - int(starts[first]) if len(inside) and starts[first] < task.start else 0
        batches = documents.batches(first, last, self.context.batch_bytes)
        begin = job.end_token if job.end == "prepended" and task.tokens else None
        tokens = with_leading_end_tokens(batches, cut, task.tokens, begin)
        dtype = np.dtype(job.dtype)
        cast = (batch.astype(dtype, copy=False) for batch in tokens)
        return DocumentTable(lengths, origins.source, origins.row), cast, cut


def with_leading_end_tokens(
    batches: Iterator[TokenArray], skip: int, count: int, end_token: int | None
) -> Iterator[TokenArray]:
    """`count` tokens of a stream after the first `skip`.

    Documents come with their end token after them. If `end_token` is given it is to stand before each instead: that is
    the same stream one token later, with an end token put before its first document.
    """
    if end_token is None:
        return _cut(batches, skip, count)
    if skip:
        return _cut(batches, skip - 1, count)
    first = next(batches)
    lead = np.array([end_token], first.dtype)
    return itertools.chain([lead], _cut(itertools.chain([first], batches), 0, count - 1))


def _cut(batches: Iterator[TokenArray], skip: int, count: int) -> Iterator[TokenArray]:
    for batch in batches:
        some = batch[skip : skip + count]
        skip = max(skip - len(batch), 0)
        count -= len(some)
        if len(some):
            yield some


def shard_of(context: ExportContext, task: ShardTask) -> Shard:
    """The shard as its format sees it."""
    job = context.frozen.job
    return Shard(
        number=task.number,
        count=task.count,
        split=task.split,
        folder=split_folder(job, task.split),
        name=job.name,
        dtype=job.dtype,
        tokenizer=job.tokenizer,
        shuffled=job.shuffle is not None,
        sequence_tokens=job.sequence_tokens,
        paths=source_columns(context.store, context.sources_sha256)[0],
        is_partial=job.shard_tokens is None,
        position=task.position,
        file_tokens=task.file_tokens,
    )


def split_folder(job: ExportJob, split: str) -> str:
    """The directory of a split inside the export: its own if the format wants one and there are two."""
    return split if find_format(job.format).SPEC.folders and job.val is not None else ""


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """The function that reads the records of many shards."""

    out: str

    def __call__(self, shards: tuple[int, ...]) -> list[ShardRecord]:
        """The records that are as they were written, in the order asked for."""
        folder = folder_at(self.out)
        found = prefetch_map(folder, functools.partial(_read_valid, folder), shards)
        return [record for record in found if record is not None]


def _read_valid(folder: Folder, shard: int) -> ShardRecord | None:
    try:
        records.read_origins(folder, shard)
        return records.read(folder, shard)
    except CorruptStore:
        return None
