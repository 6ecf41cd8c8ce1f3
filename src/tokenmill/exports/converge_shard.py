"""Make the files of shards agree with their manifest, and say which files they have after an erasure. In a worker.

`ErasedDocuments` says which documents were erased from the stores, and which shards may hold them.
"""

from __future__ import annotations

import contextlib
import functools
import io
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import CorruptStore
from tokenmill.exports import records
from tokenmill.exports.documents import DocumentTable
from tokenmill.exports.file_checks import damaged
from tokenmill.exports.job import ExportJob, FrozenExport
from tokenmill.exports.kept_columns import conform
from tokenmill.exports.shards import Counts, ShardTask, SplitAndShuffle
from tokenmill.exports.write_shard import make_shard
from tokenmill.storage import Folder, folder_at
from tokenmill.storage.checksum import xxh3_of
from tokenmill.store import tables
from tokenmill.store.chain import StoreVersion, claimed_documents, read_head
from tokenmill.store.job import require_run
from tokenmill.store.kept import nulled
from tokenmill.token_files import find_format
from tokenmill.token_files.files import IGNORED, join_marks
from tokenmill.token_files.protocol import (
    LABEL,
    UNTRAINED,
    Content,
    Format,
    Shard,
    ShardData,
    ShardRecord,
    WrittenFile,
    no_text,
)

_PAIR = np.dtype([("source", "<u4"), ("row", "<u8")])


@dataclass(frozen=True, slots=True)
class ErasedDocuments:
    """The documents that were erased from the stores of an export until some versions. It names them for workers.

    `directories` and `versions` are those of the stores, `first_sources` and `first_parts` the numbers of their first
    source and part in the export.
    """

    directories: tuple[str, ...]
    versions: tuple[StoreVersion, ...]
    first_sources: tuple[int, ...]
    first_parts: tuple[int, ...]

    @classmethod
    def of(cls, frozen: FrozenExport, directories: list[str], versions: tuple[StoreVersion, ...]) -> ErasedDocuments:
        """The documents that were erased from the stores, which are in these directories."""
        sources, parts = (
            tuple(np.cumsum([0, *(getattr(store, name) for store in frozen.stores)])[:-1].tolist())
            for name in ("sources", "parts")
        )
        return cls(tuple(directories), versions, sources, parts)

    def among(self, documents: DocumentTable) -> Counts:
        """The indices of erased documents in a table."""
        erased, _ = _erased_pairs(self)
        near = np.flatnonzero(np.isin(documents.source, erased["source"]) & np.isin(documents.row, erased["row"]))
        found = np.empty(len(near), _PAIR)
        found["source"], found["row"] = documents.source[near], documents.row[near]
        indices: Counts = near[np.isin(found, erased)]
        return indices

    def blocks(self, frozen: FrozenExport) -> Counts:
        """The blocks of the export that hold erased documents, in order: parts, or ranges of keys of a shuffle."""
        erased, parts = _erased_pairs(self)
        if frozen.job.shuffle is None:
            return np.unique(parts)
        order = SplitAndShuffle.of(frozen.job, np.empty(0, np.uint64), [])
        keys = order.keys(np.ascontiguousarray(erased["source"]), np.ascontiguousarray(erased["row"]))
        return np.unique((keys >> np.uint64(65 - frozen.bins.bit_length())).astype(np.int64))


@functools.lru_cache(maxsize=2)
def _erased_pairs(documents: ErasedDocuments) -> tuple[npt.NDArray[np.void], Counts]:
    """The source and the row of each erased document, and its part, by the numbers of the export."""
    pairs, parts = [np.empty(0, _PAIR)], [np.empty(0, np.int64)]
    stores = zip(documents.directories, documents.versions, documents.first_sources, documents.first_parts, strict=True)
    for directory, version, first_source, first_part in stores:
        folder = folder_at(directory)
        table = claimed_documents(folder, read_head(folder, number=version.number))
        pair = np.empty(len(table), _PAIR)
        pair["source"], pair["row"] = table["source"].to_numpy() + np.uint32(first_source), table["row"].to_numpy()
        pairs.append(pair)
        parts.append(table["unit"].to_numpy() + first_part)
    return np.concatenate(pairs), np.concatenate(parts)


BATCH_TOKENS = 1 << 20
"""The tokens of a shard that are written at once. A mask is separated from them, which needs memory of its own."""

COPY_BYTES = 8 << 20
"""The bytes that are copied at once where an object has to be written again."""

Files = tuple[WrittenFile, ...]


@dataclass(frozen=True, slots=True)
class ConvergeShards:
    """Converges the shards of one file, or one shard. Erasing twice is erasing once, so it may be repeated.

    `recorded` are the documents that the manifest's files do not hold, `wanted` those that they may not hold. Their
    tokens are replaced by `token`. With `check`, a command that erases, nothing is written.
    """

    out: str
    job: ExportJob
    recorded: ErasedDocuments
    wanted: ErasedDocuments
    token: int
    check: str = ""

    def __call__(self, items: tuple[tuple[ShardTask, Files], ...]) -> dict[int, Files]:
        """Take shards with the files in the manifest. Return their files without the wanted documents.

        Shards without such a document are left out. Raises CorruptStore if a shard is neither as the manifest
        describes it, nor becomes so by erasing.
        """
        found = ((task.shard, self._converge(task, files)) for task, files in items)
        return {shard: files for shard, files in found if files is not None}

    def _converge(self, task: ShardTask, files: Files) -> Files | None:
        folder = folder_at(self.out)
        record, documents = records.read_whole(folder, task.shard)
        indices = self.wanted.among(documents)
        if not len(indices):
            return None
        format_ = find_format(self.job.format)
        shard = make_shard(self.job, task, source_paths(self.wanted.directories))
        data = _read(folder, shard, record, self.job)
        if not _is_as_written(folder, shard, files, self.job):
            before = self._erased(data, documents, self.recorded.among(documents), record.cut)
            self._follow(folder, shard, before, documents, files)
            data = data if self.check else before
        after = self._erased(data, documents, indices, record.cut)
        columns = [] if data.columns is None else data.columns.take(pa.array(indices)).columns
        is_gone = np.array_equal(data.tokens, after.tokens) and data.text == after.text
        if is_gone and all(one.null_count == len(one) for one in columns):
            return files
        if self.check:
            headline = f"{folder.path(files[0].name)} holds tokens or values of documents that were erased"
            raise CorruptStore(headline, f"Run this command: {self.check}")
        return _write(ChecksumFolder(folder), format_, shard, after, documents)

    def _follow(self, folder: Folder, shard: Shard, data: ShardData, documents: DocumentTable, files: Files) -> None:
        """Write the files of a shard if they become as the manifest describes them; raise CorruptStore if not."""
        format_ = find_format(self.job.format)
        is_staged = shard.region is None and not self.check
        with contextlib.ExitStack() as staged:
            target = StagedFolder(folder, staged) if is_staged else ChecksumFolder(folder)
            made = _write(target, format_, shard, data, documents)
            if made != files:
                reason = f"it is not as it was written: checksum {made[0].xxh3}, expected {files[0].xxh3}"
                raise damaged(folder, files[0].name, reason)
        if is_staged:
            folder.sync_directory(shard.folder)
        elif not self.check:
            _write(ReplacingFolder(folder) if folder.is_remote else folder, format_, shard, data, documents)

    def _erased(self, data: ShardData, documents: DocumentTable, indices: Counts, cut: int) -> ShardData:
        """The shard without the tokens and the values of some documents."""
        tokens = np.array(data.tokens)
        for first, last in token_ranges(self.job, documents, indices, cut, len(tokens)):
            tokens[first:last] = self.token | int(UNTRAINED) if self.job.mask else self.token
        is_erased = np.zeros(len(documents.lengths), np.int64)
        is_erased[indices] = 1
        columns = None if data.columns is None else nulled(data.columns, is_erased)
        text = None if data.text is None else pc.if_else(pa.array(is_erased == 1), "", data.text)
        return ShardData(tokens, data.lengths, columns, text)


def token_ranges(
    job: ExportJob, documents: DocumentTable, indices: Counts, cut: int, tokens: int
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


@functools.lru_cache(maxsize=1)
def source_paths(stores: tuple[str, ...]) -> pa.Array:
    """The paths of the sources of all stores."""
    folders = [folder_at(directory) for directory in stores]
    return pa.concat_arrays(
        [tables.read_sources(folder, require_run(folder))["path"].combine_chunks() for folder in folders]
    )


def _is_as_written(folder: Folder, shard: Shard, files: Files, job: ExportJob) -> bool:
    if shard.region is None:
        places = [(file, 0, file.bytes) for file in files]
    else:
        position, tokens = shard.region.position, shard.region.file_tokens
        sizes = zip(files, job.region_token_bytes, strict=False)
        places = [(file, position * size, tokens * size) for file, size in sizes]
    if any(folder.size(file.name) != size for file, _, size in places):
        return False
    return all(xxh3_of(folder, file.name, start, file.bytes) == file.xxh3 for file, start, _ in places)


def _read(folder: Folder, shard: Shard, record: ShardRecord, job: ExportJob) -> ShardData:
    """The shard as it is in its file."""
    format_ = find_format(job.format)
    names, tokens = format_.files(shard), record.tokens
    if shard.region is None:
        data = format_.read(folder, names, job.dtype)
    else:
        values = [
            np.frombuffer(
                folder.ranges.read_at(name, shard.region.position * size, tokens * size),
                np.dtype(dtype).newbyteorder("<"),
            )
            for name, size, dtype in zip(names, job.region_token_bytes, (job.dtype, LABEL), strict=False)
        ]
        data = ShardData(join_marks(values[0], values[1] != IGNORED) if job.mask else values[0])
    found, expected = (len(data.tokens), tokens) if data.text is None else (len(data.text), record.documents)
    if found != expected:
        raise CorruptStore(f"{folder.path(names[0])} does not have the tokens of its record")
    if ([] if data.columns is None else data.columns.column_names) != [column.name for column in job.with_columns]:
        raise CorruptStore(f"{folder.path(names[0])} does not have the columns of its export")
    return data


def _write(
    folder: Folder | ChecksumFolder, format_: Format, shard: Shard, data: ShardData, documents: DocumentTable
) -> Files:
    """Write the files of a shard."""
    values = conform(data.columns, len(documents.lengths), shard.with_columns)

    def columns(start: int, stop: int) -> pa.Table:
        return values.slice(start, stop - start)

    def text(start: int, stop: int) -> pa.LargeStringArray:
        return no_text(start, stop) if data.text is None else data.text.slice(start, stop - start)

    batches = (data.tokens[first : first + BATCH_TOKENS] for first in range(0, len(data.tokens), BATCH_TOKENS))
    content = Content(documents.lengths, documents.source, documents.row, batches, columns, text)
    return format_.write(folder, shard, content)  # type: ignore[arg-type]


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
        with open(os.devnull, "wb") as file:
            yield file

    def write(self, name: str, size: int, start: int) -> contextlib.AbstractContextManager[BinaryIO]:
        """The same for a region of a file."""
        del size, start
        return self.publish(name)


class StagedFolder(ChecksumFolder):
    """A folder to which a format can write a shard whose files appear when the stack ends without an error."""

    def __init__(self, folder: Folder, staged: contextlib.ExitStack) -> None:
        super().__init__(folder)
        self._folder, self._staged = folder, staged

    @contextlib.contextmanager
    def publish(self, name: str, **options: Any) -> Iterator[BinaryIO]:
        """Yield a file that the stack will publish."""
        yield self._staged.enter_context(self._folder.publish(name, **options))


class ReplacingFolder(ChecksumFolder):
    """A folder to which a format can write a shard whose objects have other shards, too. They are written again."""

    def __init__(self, folder: Folder) -> None:
        super().__init__(folder)
        self._folder = folder

    @contextlib.contextmanager
    def write(self, name: str, size: int, start: int) -> Iterator[BinaryIO]:
        """Yield a buffer, and publish the object with its bytes when the block ends."""
        buffer = io.BytesIO()
        yield buffer
        new = np.frombuffer(buffer.getbuffer(), np.uint8)
        read_at = self._folder.ranges.read_at
        with self._folder.publish(name) as file:
            for begin in range(0, size, COPY_BYTES):
                chunk = np.frombuffer(read_at(name, begin, min(COPY_BYTES, size - begin)), np.uint8).copy()
                low, high = max(start, begin), min(start + len(new), begin + len(chunk))
                if low < high:
                    chunk[low - begin : high - begin] = new[low - start : high - start]
                file.write(chunk.data)
