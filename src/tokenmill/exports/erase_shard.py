"""Replace the tokens and kept values of erased documents in the shards of a complete export. Runs in a worker."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore
from tokenmill.exports import records
from tokenmill.exports.documents import DocumentTable
from tokenmill.exports.file_checks import damaged
from tokenmill.exports.formats import find_format
from tokenmill.exports.formats.protocol import Content, Shard, ShardData, Tokens, WrittenFile
from tokenmill.exports.job import RECORDS, ExportJob
from tokenmill.exports.kept_columns import conform
from tokenmill.exports.shards import ShardTask
from tokenmill.exports.write_shard import make_shard
from tokenmill.storage import Folder, folder_at
from tokenmill.storage.checksum import xxh3_of
from tokenmill.store import tables
from tokenmill.store.erasures import erased_documents
from tokenmill.store.job import StoreChange
from tokenmill.store.kept import nulled
from tokenmill.store.run import require_run

COPY_BYTES = 8 << 20
"""The bytes that are copied at once where an object has to be written again."""


class ShardErasure(msgspec.Struct, frozen=True):
    """The files of a shard before and after an erasure."""

    shard: int
    before: tuple[WrittenFile, ...]
    after: tuple[WrittenFile, ...]


@dataclass(frozen=True, slots=True)
class ErasedDocuments:
    """Documents that a change of a store erased. Sources are numbered as in an export of several stores.

    `first_sources` has the number of the store's first source, for each copy of the store in the export.
    """

    directory: str
    change: StoreChange
    first_sources: tuple[int, ...]
    token: int

    def origins(self) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
        """The source and the row of each document, in each copy."""
        table = erased_documents(self.directory, self.change)
        source = np.add.outer(np.array(self.first_sources, np.uint32), table["source"].to_numpy())
        return source.ravel(), np.tile(table["row"].to_numpy(), len(self.first_sources))

    def among(self, documents: DocumentTable) -> npt.NDArray[np.int64]:
        """The indices of erased documents in a table."""
        source, row = self.origins()
        near = np.flatnonzero(np.isin(documents.source, source) & np.isin(documents.row, row))
        pair = np.dtype([("source", "<u4"), ("row", "<u8")])
        wanted, found = np.empty(len(row), pair), np.empty(len(near), pair)
        wanted["source"], wanted["row"] = source, row
        found["source"], found["row"] = documents.source[near], documents.row[near]
        return near[np.isin(found, wanted)]


def token_ranges(
    job: ExportJob, documents: DocumentTable, indices: npt.NDArray[np.int64], cut: int, tokens: int
) -> list[tuple[int, int]]:
    """The tokens of a shard that belong to these documents, without an end token that precedes them.

    With end tokens before the documents, the stream is one token late. Then the first token of a shard belongs to its
    first document only if that began in an earlier shard.
    """
    ends = np.cumsum(documents.lengths)
    begins = ends - documents.lengths
    delay = int(job.end == "prepended" and job.end_token is not None)
    ranges = []
    for index in indices.tolist():
        first = int(begins[index]) + (0 if index == 0 and cut else delay)
        ranges.append((first, min(int(ends[index]) + delay, tokens)))
    return [(first, last) for first, last in ranges if first < last]


class _NoFile:
    """A file that keeps nothing."""

    closed = False

    def write(self, data: bytes | memoryview) -> int:
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Do nothing."""


class ChecksumFolder:
    """A folder to which a format can write a shard only for its checksums."""

    def __init__(self, folder: Folder) -> None:
        self.root = folder.root
        self.path = folder.path
        self.regions = self

    @contextlib.contextmanager
    def publish(self, name: str, **_: Any) -> Iterator[BinaryIO]:
        """Yield a file that keeps nothing."""
        del name
        yield _NoFile()  # type: ignore[misc]

    def write(self, name: str, size: int, start: int) -> contextlib.AbstractContextManager[BinaryIO]:
        """The same for a region of a file."""
        del size, start
        return self.publish(name)


@dataclass(frozen=True, slots=True)
class ShardEraser:
    """Reads a shard, replaces the tokens of erased documents and writes it again."""

    out: str
    job: ExportJob
    erased: ErasedDocuments
    stores: tuple[str, ...]

    def plan(self, task: ShardTask) -> ShardErasure | None:
        """The files of a shard before and after; None if it holds no erased document."""
        folder = folder_at(self.out)
        documents = records.read_origins(folder, task.shard)
        indices = self.erased.among(documents)
        if not len(indices):
            return None
        record = records.read(folder, task.shard)
        self._check(folder, task, record.files)
        shard = self._shard(task)
        data = self._read(folder, shard, task)
        tokens, _ = self._replace(folder, task, data.tokens, documents, indices)
        content = self._content(data, tokens, documents, indices)
        after = find_format(self.job.format).write(ChecksumFolder(folder), shard, content)  # type: ignore[arg-type]
        return ShardErasure(task.shard, record.files, after)

    def check(self, task: ShardTask, *, left_out: bool) -> int:
        """Return the number of erased documents in a shard. Raises CorruptStore if their tokens or values are there."""
        folder = folder_at(self.out)
        documents = records.read_origins(folder, task.shard)
        indices = self.erased.among(documents)
        if not len(indices):
            return 0
        shard = self._shard(task)
        name, request = find_format(self.job.format).files(shard)[0], self.erased.change.request
        if left_out:
            raise damaged(folder, name, f"it has a document that request {request} erased before the export")
        data = self._read(folder, shard, task)
        erased, _ = self._replace(folder, task, data.tokens, documents, indices)
        if not np.array_equal(data.tokens, erased):
            raise damaged(folder, name, f"it holds tokens of a document that request {request} erased")
        columns = [] if data.columns is None else data.columns.take(pa.array(indices)).columns
        if any(column.null_count < len(column) for column in columns):
            raise damaged(folder, name, f"it holds values of a document that request {request} erased")
        return len(indices)

    def erase(self, task: ShardTask, planned: ShardErasure) -> None:
        """Write the files of a shard, compare them with the plan, and publish its record. May be repeated."""
        folder = folder_at(self.out)
        documents, record = records.read_origins(folder, task.shard), records.read(folder, task.shard)
        shard = self._shard(task)
        indices, data = self.erased.among(documents), self._read(folder, shard, task)
        tokens, ranges = self._replace(folder, task, data.tokens, documents, indices)
        if shard.region is None:
            content = self._content(data, tokens, documents, indices)
            written = find_format(self.job.format).write(folder, shard, content)
            folder.sync_directory(shard.folder)
        else:
            name, size, start = self._region(task, record.files)
            if ranges:
                _overwrite(folder, name, size, start, tokens, ranges)
            written = (WrittenFile(name, tokens.nbytes, xxh3_of(folder, name, start, tokens.nbytes)),)
        if written != planned.after:
            raise damaged(folder, planned.after[0].name, "it is not the file that the erasure was planned for")
        records.publish(folder, msgspec.structs.replace(record, files=written), documents)
        folder.sync_directory(RECORDS)

    def _check(self, folder: Folder, task: ShardTask, files: tuple[WrittenFile, ...]) -> None:
        """Compare the files with their checksums: a damaged file must not get new ones."""
        for file in files:
            start = self._region(task, files)[2] if self.job.shard_tokens is None else 0
            if xxh3_of(folder, file.name, start, file.bytes) != file.xxh3:
                raise damaged(folder, file.name, "it is not as it was written")

    def _region(self, task: ShardTask, files: tuple[WrittenFile, ...]) -> tuple[str, int, int]:
        """The file of a region, the size of the file, and the first byte of the region."""
        size = np.dtype(self.job.dtype).itemsize
        return files[0].name, task.file_tokens * size, task.position * size

    def _read(self, folder: Folder, shard: Shard, task: ShardTask) -> ShardData:
        """The shard as it is in its file."""
        format_ = find_format(self.job.format)
        names = format_.files(shard)
        if shard.region is None:
            data = format_.read(folder, names, self.job.dtype)
        else:
            size = np.dtype(self.job.dtype).itemsize
            content = folder.ranges.read_at(names[0], task.position * size, task.tokens * size)
            data = ShardData(np.frombuffer(content, np.dtype(self.job.dtype).newbyteorder("<")))
        if len(data.tokens) != task.tokens:
            raise CorruptStore(f"{folder.path(names[0])} does not have the tokens of its record")
        columns = [] if data.columns is None else data.columns.column_names
        if columns != [column.name for column in self.job.with_columns]:
            raise CorruptStore(f"{folder.path(names[0])} does not have the columns of its export")
        return data

    def _content(
        self, data: ShardData, tokens: Tokens, documents: DocumentTable, indices: npt.NDArray[np.int64]
    ) -> Content:
        """The shard with these tokens, and without the values of the documents."""
        is_erased = np.zeros(len(documents.lengths), np.int64)
        is_erased[indices] = 1
        kept = None if data.columns is None else nulled(data.columns, is_erased)
        values = conform(kept, len(is_erased), self.job.with_columns)

        def columns(start: int, stop: int) -> pa.Table:
            return values.slice(start, stop - start)

        return Content(documents.lengths, documents.source, documents.row, iter([tokens]), columns)

    def _replace(
        self, folder: Folder, task: ShardTask, tokens: Tokens, documents: DocumentTable, indices: npt.NDArray[np.int64]
    ) -> tuple[Tokens, list[tuple[int, int]]]:
        tokens = np.array(tokens)
        ranges = token_ranges(self.job, documents, indices, records.read(folder, task.shard).cut, len(tokens))
        for first, last in ranges:
            tokens[first:last] = self.erased.token
        return tokens, ranges

    def _shard(self, task: ShardTask) -> Shard:
        return make_shard(self.job, task, source_paths(self.stores))


@functools.lru_cache(maxsize=1)
def source_paths(stores: tuple[str, ...]) -> pa.Array:
    """The paths of the sources of all stores."""
    folders = [folder_at(directory) for directory in stores]
    return pa.concat_arrays(
        [tables.read_sources(folder, require_run(folder))["path"].combine_chunks() for folder in folders]
    )


def _overwrite(  # noqa: PLR0913, PLR0917 - a file, a region of it, and what is replaced there
    folder: Folder, name: str, size: int, start: int, tokens: Tokens, ranges: list[tuple[int, int]]
) -> None:
    """Replace the tokens of some ranges in a file: in place on a disk, by a new object in an object store."""
    first, last = min(first for first, _ in ranges), max(last for _, last in ranges)
    data = np.ascontiguousarray(tokens[first:last], tokens.dtype.newbyteorder("<")).view(np.uint8).tobytes()
    position = start + first * tokens.itemsize
    if not folder.is_remote:
        with folder.regions.write(name, size, position) as file:
            file.write(data)
        return
    with folder.publish(name) as file:
        for begin in range(0, size, COPY_BYTES):
            chunk = bytearray(folder.ranges.read_at(name, begin, min(COPY_BYTES, size - begin)))
            low, high = max(position, begin), min(position + len(data), begin + len(chunk))
            if low < high:
                chunk[low - begin : high - begin] = data[low - position : high - position]
            file.write(bytes(chunk))


@dataclass(frozen=True, slots=True)
class PlanShards:
    """The function that plans the erasure in a shard."""

    eraser: ShardEraser

    def __call__(self, task: ShardTask) -> ShardErasure | None:
        """The files of the shard before and after; None if nothing changes."""
        return self.eraser.plan(task)


@dataclass(frozen=True, slots=True)
class EraseShards:
    """The function that erases documents in the shards of one file, one shard after the other."""

    eraser: ShardEraser

    def __call__(self, items: tuple[tuple[ShardTask, ShardErasure], ...]) -> int:
        """Return the number of shards."""
        for task, planned in items:
            self.eraser.erase(task, planned)
        return len(items)
