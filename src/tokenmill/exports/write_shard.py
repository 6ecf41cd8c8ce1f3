"""The functions of an export that run in workers: count, sort, write."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.best_fit import whole_rows
from tokenmill.errors import CorruptStore, StoreError
from tokenmill.exports import records, sorted_runs
from tokenmill.exports.documents import (
    DocumentRange,
    DocumentTable,
    PartDocuments,
    SortedRunDocuments,
    take_documents,
    with_marks,
)
from tokenmill.exports.job import ExportJob, FrozenExport, is_complete
from tokenmill.exports.kept_columns import conform
from tokenmill.exports.shards import Counts, ShardTask, SplitAndShuffle
from tokenmill.exports.shards import tasks as shard_tasks
from tokenmill.exports.shuffle import Level, Shuffle
from tokenmill.exports.text import ShardText
from tokenmill.storage import Folder, folder_at, prefetch_map
from tokenmill.store.listed_parts import ListedParts
from tokenmill.store.part import PartContent, TokenArray
from tokenmill.token_files import find_format
from tokenmill.token_files.protocol import COLUMN_TYPES, Content, FileRegion, Shard, ShardRecord


@dataclass(frozen=True, slots=True)
class ExportContext:
    """What a worker needs to know of an export: the parts, the export's directory, and the content of export.json."""

    parts: ListedParts
    out: str
    frozen: FrozenExport
    shuffle: Shuffle
    batch_bytes: int

    @property
    def order(self) -> SplitAndShuffle:
        """The split and the shuffle of the export."""
        return SplitAndShuffle.of(self.frozen.job, *self.parts.source_columns()[1:])

    def contents(self, parts: Iterable[int], *, check_content: bool) -> Iterator[PartContent]:
        """Yield parts of the stores. With `check_content` their content is compared with its checksum."""
        return prefetch_map(self.parts.folder, lambda part: self.open_part(part, check_content), parts)

    def open_part(self, part: int, check_content: bool) -> PartContent:
        """Open a part, which must be the one in the manifest of the exported store."""
        content = self.parts.open(part, content_too=check_content)[1]
        return with_marks(content) if self.frozen.job.mask else content

    def documents(
        self, stream: int, first_block: int, last_block: int, *, check_lengths: bool = False
    ) -> DocumentRange:
        """Return the documents of blocks [first_block, last_block].

        With `check_lengths` the content of parts is checked before the lengths of documents are read from them. Without
        it, that happens when their tokens are read.
        """
        blocks = range(first_block, last_block + 1)
        if self.frozen.job.shuffle is None:
            return PartDocuments(
                self.parts.folder, self.order, self.open_part, stream, blocks, self.read_kept, check_lengths
            )
        level = self.shuffle.levels[-1]
        return self.sorted_documents(level, range(level.groups), stream, blocks)

    def sorted_documents(
        self, level: Level, groups: range, stream: int, bins: range, digest: str | None = None
    ) -> SortedRunDocuments:
        """Return the documents of some groups and bins of a level of sorted runs."""
        ranges, columns = level.ranges(groups, stream, bins), self.frozen.job.with_columns
        return SortedRunDocuments(folder_at(self.out), self.order, self.shuffle.dtype, ranges, columns, digest)

    def read_kept(self, part: int) -> pa.Table:
        """Read the kept columns of a part that the export has, in its types."""
        documents, values = self.parts.kept(part)
        return conform(values, documents, self.frozen.job.with_columns)


@dataclass(frozen=True, slots=True)
class CountStreams:
    """Counts the documents and tokens of each stream in some parts."""

    context: ExportContext

    def __call__(self, parts: tuple[int, ...]) -> tuple[Counts, Counts]:
        """Return documents and tokens: a row for each stream, a column for each part."""
        order, streams = self.context.order, self.context.frozen.job.streams
        documents, tokens = np.zeros((2, streams, len(parts)), np.int64)
        for column, content in enumerate(self.context.contents(parts, check_content=True)):
            stream = order.streams(content.source, content.row)
            stream = np.zeros(len(content.row), np.uint8) if stream is None else stream
            documents[:, column] = np.bincount(stream, minlength=streams)
            tokens[:, column] = np.bincount(stream, np.diff(content.offsets), minlength=streams)
        return documents, tokens


# Documents in the order of a sorted run: tokens, origins, the stream of each, and the kept columns.
SortedDocuments = tuple[TokenArray, DocumentTable, npt.NDArray[np.uint8], pa.Table | None]


@dataclass(frozen=True, slots=True)
class WriteSortedRun:
    """Writes a sorted run from some parts, or from the runs of some groups of the level before."""

    context: ExportContext

    def __call__(self, task: tuple[int, int, int]) -> None:
        """Take the number of the run, the first part or group, and the last one + 1.

        Another rank may have written the run or completed the export meanwhile, and removed what this one reads.
        """
        folder = folder_at(self.context.out)
        try:
            self._write(folder, *task)
        except StoreError:
            shuffle = self.context.shuffle
            if not (is_complete(folder) or shuffle.done(sorted_runs.committed(folder, shuffle.runs))[task[0]]):
                raise

    def _write(self, folder: Folder, run: int, start: int, stop: int) -> None:
        job, shuffle = self.context.frozen.job, self.context.shuffle
        number = shuffle.level_of(run)
        level = shuffle.levels[number]
        if number:
            sorted_ = self._merge(shuffle.levels[number - 1], range(start, stop), level.slice_of(run))
        else:
            sorted_ = self._sort(range(start, stop))
        tokens, origins, stream, columns = sorted_
        # There are 2^n bins, and a key's bin is its highest n bits.
        bin_of = self.context.order.keys(origins.source, origins.row) >> np.uint64(65 - level.bins.bit_length())
        width = level.bins_in_run
        bin_in_run = bin_of.astype(np.int64) % width + stream.astype(np.int64) * width
        content = PartContent(tokens, np.append(0, np.cumsum(origins.lengths)), origins.source, origins.row)
        kept = b"" if columns is None else sorted_runs.encode_columns(columns, job.with_columns)
        digest = self.context.frozen.work_digest()
        sorted_runs.publish_sorted_run(folder, run, digest, content, bin_in_run, width * job.streams, kept)

    def _sort(self, parts: range) -> SortedDocuments:
        order = self.context.order
        contents = list(self.context.contents(parts, check_content=True))
        origins = DocumentTable.concatenate([DocumentTable.of_part(part) for part in contents])
        selected = order.selected(origins.source, origins.row)
        chosen = np.arange(len(origins.row)) if selected is None else np.flatnonzero(selected)
        if selected is not None:
            origins = origins.take(chosen)
        keys = order.keys(origins.source, origins.row)
        stream = order.streams(origins.source, origins.row)
        sorting = np.argsort(keys, kind="stable") if stream is None else np.lexsort((keys, stream))
        stream = np.zeros(len(keys), np.uint8) if stream is None else stream
        tokens = take_documents([(part.tokens, part.offsets) for part in contents], chosen[sorting])
        columns = None
        if self.context.frozen.job.with_columns:
            values = pa.concat_tables(map(self.context.read_kept, parts))
            columns = values.take(pa.array(chosen[sorting]))
        return tokens, origins.take(sorting), stream[sorting], columns

    def _merge(self, before: Level, groups: range, slice_: int) -> SortedDocuments:
        """Read one range of keys of some runs. The indexes of runs that are merged count just these ranges."""
        job, digest, bins = self.context.frozen.job, self.context.frozen.work_digest(), range(slice_, slice_ + 1)
        read = self.context.sorted_documents
        streams = [read(before, groups, stream, bins, digest) for stream in range(job.streams)]
        counts = [len(documents.origins.lengths) for documents in streams]
        held = [(documents, count) for documents, count in zip(streams, counts, strict=True) if count]
        tokens = [documents.tokens(0, count) for documents, count in held]
        columns = None
        if job.with_columns:
            none = pa.table({column.name: pa.array([], COLUMN_TYPES[column.type]) for column in job.with_columns})
            columns = pa.concat_tables([none, *(documents.columns(0, count) for documents, count in held)])
        return (
            np.concatenate([np.empty(0, self.context.shuffle.dtype), *tokens]),
            DocumentTable.concatenate([documents.origins for documents in streams]),
            np.repeat(np.arange(job.streams, dtype=np.uint8), counts),
            columns,
        )


@dataclass(frozen=True, slots=True)
class CheckSortedRun:
    """Compares a sorted run of an earlier call with its checksums."""

    context: ExportContext

    def __call__(self, run: int) -> bool:
        """Return whether the run is as it was written, for this export."""
        return sorted_runs.is_intact(folder_at(self.context.out), run, self.context.frozen.work_digest())


@dataclass(frozen=True, slots=True)
class FindDocumentEdges:
    """Finds the first document edge at or after each of some positions of a stream."""

    context: ExportContext

    def __call__(self, task: tuple[int, tuple[tuple[int, int, int], ...]]) -> Counts:
        """Take the stream, and for each position its block, the tokens before the block, and the position."""
        stream, queries = task
        resolved = []
        for (block, before), group in itertools.groupby(queries, key=lambda query: query[:2]):
            lengths = self.context.documents(stream, block, block, check_lengths=True).origins.lengths
            edges = before + np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            resolved.append(edges[np.searchsorted(edges, [position for _, _, position in group])])
        return np.concatenate(resolved)


@dataclass(frozen=True, slots=True)
class WriteShard:
    """Writes one shard and then its record, which commits it."""

    context: ExportContext

    def __call__(self, task: ShardTask) -> ShardRecord:
        """Return the record of the shard. A shard that has one already is not written again.

        An earlier worker may have committed the shard and died before it returned. Another machine may have completed
        the export, and removed the sorted runs while this worker was reading them.
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
        content, cut = self._content(task, documents)
        long_documents, long_tokens = 0, 0
        if job.row_tokens is not None:
            content, long_documents, long_tokens = _packed(content, job.row_tokens, job.marked_dtype)
        origins = DocumentTable(content.lengths, content.source, content.row)
        shard = make_shard(job, task, self.context.parts.source_columns()[0])
        text = None
        if format_.SPEC.is_text:
            text = ShardText.of(self.context.parts.stores[0], shard, content)
            content = replace(content, text=text)
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
            tokens=content.tokens,
            files=files,
            export=job.digest(),
            documents_xxh3=records.documents_xxh3(origins),
            long_documents=long_documents,
            long_tokens=long_tokens,
            control_tokens=0 if text is None else text.control_tokens,
        )
        records.publish(folder, record, origins)
        return record

    def _content(self, task: ShardTask, documents: DocumentRange) -> tuple[Content, int]:
        """Return the documents of the shard, and how many tokens of the first are in earlier shards."""
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
                f"shard {task.shard} does not have the planned number of tokens",
                f"expected     {task.tokens:,}",
                f"found        {int(lengths.sum()):,}",
                "Check the store with `tokenmill verify`, then remove the export and run it again.",
            )
        cut = task.start - int(starts[first]) if len(inside) and starts[first] < task.start else 0
        batches = documents.batches(first, last, self.context.batch_bytes)
        begin = job.end_token if job.end == "prepended" and task.tokens else None
        tokens = with_leading_end_tokens(batches, cut, task.tokens, begin)
        dtype = np.dtype(job.marked_dtype)
        cast = (batch.astype(dtype, copy=False) for batch in tokens)

        def columns(start: int, stop: int) -> pa.Table:
            return documents.columns(first + start, first + stop)

        return Content(lengths, origins.source, origins.row, cast, columns), cut


def _packed(content: Content, row_tokens: int, dtype: str) -> tuple[Content, int, int]:
    """The documents of a shard in the order of packed rows, and the number and tokens of those that are longer."""
    table = DocumentTable(content.lengths, content.source, content.row)
    fitting = np.flatnonzero((table.lengths > 0) & (table.lengths <= row_tokens))
    kept = fitting[whole_rows(table.lengths[fitting], row_tokens)[1]]
    offsets = np.append(0, np.cumsum(table.lengths))
    tokens = take_documents([(np.concatenate([np.empty(0, dtype), *content.batches]), offsets)], kept)
    packed = table.take(kept)
    long = table.lengths[table.lengths > row_tokens]
    return Content(packed.lengths, packed.source, packed.row, iter([tokens])), len(long), int(long.sum())


def with_leading_end_tokens(
    batches: Iterator[TokenArray], skip: int, count: int, end_token: int | None
) -> Iterator[TokenArray]:
    """Yield `count` tokens of a stream after the first `skip`. `end_token` is given if it is to precede each document.

    In the store an end token follows each document. A stream with end tokens before the documents is the same stream
    delayed by one token, with one end token before the first document.
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
        wanted = batch[skip : skip + count]
        skip = max(skip - len(batch), 0)
        count -= len(wanted)
        if len(wanted):
            yield wanted


def planned_files(job: ExportJob, plan: pa.Table) -> set[str]:
    """Return the names of the files of all shards of a plan."""
    format_, no_paths = find_format(job.format), pa.array([], pa.string())
    tasks = shard_tasks(plan, np.arange(len(plan)))
    return {name for task in tasks for name in format_.files(make_shard(job, task, no_paths))}


def make_shard(job: ExportJob, task: ShardTask, paths: pa.Array) -> Shard:
    """Return the shard of a job as its format needs it. `paths` are those of all sources."""
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
        columns=job.columns,
        with_columns=job.with_columns,
        mask=job.mask,
        row_tokens=job.row_tokens,
        paths=paths,
        region=FileRegion(task.position, task.file_tokens) if job.shard_tokens is None else None,
    )


def split_folder(job: ExportJob, split: str) -> str:
    """Return the directory of a split in the export. It is empty unless the format separates two splits."""
    return split if find_format(job.format).SPEC.layout.folders and job.val is not None else ""


@dataclass(frozen=True, slots=True)
class ReadRecords:
    """Reads the records of many shards."""

    out: str

    def __call__(self, shards: tuple[int, ...]) -> list[ShardRecord]:
        """Return the valid records in the order of the shards."""
        folder = folder_at(self.out)
        valid = prefetch_map(folder, functools.partial(_read_valid, folder), shards)
        return [record for record in valid if record is not None]


def _read_valid(folder: Folder, shard: int) -> ShardRecord | None:
    try:
        return records.read_whole(folder, shard)[0]
    except CorruptStore:
        return None
