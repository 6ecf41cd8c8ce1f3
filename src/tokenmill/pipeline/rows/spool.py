"""Copies rows to the spool of a store, or compares them with the spool that is there.

The content of each file follows from the rows alone: batches and files end at rows that numbers of rows and bytes
decide. So the same rows give the same files again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import BinaryIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import TRY_AGAIN, JobChanged, StoreError, UsageError
from tokenmill.executors.progress import Reporter
from tokenmill.humanize import size
from tokenmill.pipeline.rows.stream import BATCH_ROWS, RowStream
from tokenmill.storage import Folder, free_bytes
from tokenmill.storage.digest import Hasher
from tokenmill.store.layout import SPOOL
from tokenmill.store.spool import (
    JSONL,
    Spool,
    SpoolFile,
    publish_spool,
    read_spool,
    spool_name,
    write_arrow,
    write_lines,
)

BATCH_BYTES = 8 << 20
FILE_BYTES = 32 << 20
"""A batch, and a file, end with the row that makes them as large as this."""

RESERVE_BYTES = 256 << 20
"""What the spool leaves free on a disk."""

FIXED_BYTES = 8
"""What a value without a length counts for."""

OpenRows = Callable[[], Mapping[str | None, RowStream] | None]
"""Opens the rows of each split, or of None. Returns None if they are not given."""


@dataclass(frozen=True, slots=True)
class RowsFile:
    """The rows of one spool file, in memory."""

    record: SpoolFile
    kind: str
    batches: list[pa.RecordBatch]
    bytes: int


def spool_rows(folder: Folder, open_rows: OpenRows, what: str, report: Reporter, *, force: bool = False) -> Spool:
    """The spool of these rows. If the store has one, they are compared with it; without rows it is taken as it is.

    Raises JobChanged for other rows. A spool that is not complete is made again, from all rows.
    """
    spool = read_spool(folder)
    if spool is None and folder.names(SPOOL):
        report.say(f"note: an earlier copy of the rows in {folder.path(SPOOL)} was not completed: it begins again")
        folder.remove(SPOOL)
    streams = open_rows()
    if streams is None and spool is None:
        raise UsageError(
            f"no rows come from {what}: it is a terminal", "Give them by a pipe: cat data.jsonl | tokenmill prepare -"
        )
    if spool is None:
        return _write(folder, streams or {}, what, report, force=force)
    if not (streams and _is_equal(folder, spool, streams, what, report)):
        report.say(f"note: no rows come from {what}: the run goes on with those in {folder.path(SPOOL)}")
    return spool


def _write(
    folder: Folder, streams: Mapping[str | None, RowStream], what: str, report: Reporter, *, force: bool
) -> Spool:
    report.say(f"note: rows from {what} are in no file: they are copied to {folder.path(SPOOL)} first")
    known_bytes = sum(stream.size or 0 for stream in streams.values())
    if known_bytes and not force:
        _require_room(folder, known_bytes, is_begun=False)
    folder.create(SPOOL)
    files: list[SpoolFile] = []
    kind = JSONL
    try:
        for file in _files(streams, "copied", report):
            _require_room(folder, file.bytes, is_begun=True)
            with folder.publish(file.record.name, durable=False) as output:
                write_rows(output, file)
            files.append(file.record)
            kind = file.kind
        _require_rows(files, what)
        spool = Spool(kind, tuple(files))
        publish_spool(folder, spool)
    except BaseException:
        folder.remove(SPOOL)
        raise
    return spool


def _require_rows(files: list[SpoolFile], what: str) -> None:
    if not files:
        raise UsageError(f"no rows come from {what}", "Nothing was made.")


def _is_equal(
    folder: Folder, spool: Spool, streams: Mapping[str | None, RowStream], what: str, report: Reporter
) -> bool:
    """Whether there are rows, and they are those of a spool. Raises JobChanged for other rows."""
    first = number = 0
    for number, file in enumerate(_files(streams, "compared", report), 1):
        if number > len(spool.files) or file.record != spool.files[number - 1]:
            raise _other_rows(folder, what, f"from row {first:,} on")
        first += file.record.rows
    if number and number < len(spool.files):
        raise _other_rows(folder, what, f"{first:,} rows, and the store has {spool.rows:,}")
    return number > 0


def _other_rows(folder: Folder, what: str, where: str) -> JobChanged:
    return JobChanged(
        f"the rows from {what} are not those that this run was started with",
        f"run          {folder.root}",
        f"differ       {where}",
        "Use the original rows, another --out, or remove the directory.",
    )


def _files(streams: Mapping[str | None, RowStream], done: str, report: Reporter) -> Iterator[RowsFile]:
    """The files of the rows, split by split, each when all its rows are read."""
    number = all_rows = all_bytes = 0
    for split, stream in streams.items():
        held: list[pa.RecordBatch] = []
        held_bytes = 0
        for batch in chain(_cut(stream.batches), [None]):
            if batch is not None:
                held.append(batch)
                batch_bytes = pa.ipc.get_record_batch_size(batch)
                held_bytes += batch_bytes
                all_rows, all_bytes = all_rows + len(batch), all_bytes + batch_bytes
                report.pending(f"rows         {all_rows:,} {done}, {size(all_bytes)}")
            if held and (batch is None or held_bytes >= FILE_BYTES):
                yield spool_file(number, split, stream.kind, held)
                number, held, held_bytes = number + 1, [], 0


def spool_file(number: int, split: str | None, kind: str, batches: list[pa.RecordBatch]) -> RowsFile:
    """A spool file of these rows, of which there is at least one batch."""
    digest, total = Hasher(batches[0].schema.serialize()), 0
    for batch in batches:
        data = batch.serialize()
        digest.update(data)
        total += len(data)
    rows = sum(map(len, batches))
    return RowsFile(SpoolFile(spool_name(number, kind), rows, digest.hexdigest(), split), kind, batches, total)


def _cut(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The rows in batches that do not depend on how they came: each ends after BATCH_ROWS, or BATCH_BYTES.

    A stream without rows gives its last batch, which is empty, so that its columns are known.
    """
    held: list[pa.RecordBatch] = []
    rows = held_bytes = given = 0
    batch = None
    for batch in batches:
        ends, start = np.cumsum(_row_bytes(batch)), 0
        while start < len(batch):
            before = int(ends[start - 1]) if start else 0
            full = int(np.searchsorted(ends, before + BATCH_BYTES - held_bytes)) + 1
            stop = min(full, start + BATCH_ROWS - rows, len(batch))
            held.append(batch.slice(start, stop - start))
            rows, held_bytes, start = rows + stop - start, held_bytes + int(ends[stop - 1]) - before, stop
            if rows == BATCH_ROWS or held_bytes >= BATCH_BYTES:
                yield _joined(held)
                given += rows
                held, rows, held_bytes = [], 0, 0
    if held:
        yield _joined(held)
    elif batch is not None and not given:
        yield batch


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Some batches as one, in buffers whose bytes follow from the values alone."""
    table = pa.Table.from_batches(batches).combine_chunks()
    return table.take(pa.array(np.arange(len(table)))).to_batches()[0]


def _row_bytes(batch: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """About the bytes of each row. They follow from the values of the row alone."""
    total = np.zeros(len(batch), np.int64)
    for column in batch.columns:
        total += _value_bytes(column)
    return total


def _value_bytes(column: pa.Array) -> npt.NDArray[np.int64]:
    kind = column.type
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return np.asarray(pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False), np.int64)
    if pa.types.is_large_list(kind):
        before = np.append(0, np.cumsum(_value_bytes(column.flatten())))
        lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        return np.asarray(np.diff(before[np.append(0, np.cumsum(lengths))]) + FIXED_BYTES, np.int64)
    total = np.full(len(column), FIXED_BYTES, np.int64)
    for child in column.flatten() if pa.types.is_struct(kind) else ():
        total += _value_bytes(child)
    return total


def write_rows(output: BinaryIO, file: RowsFile) -> None:
    """Write the rows of a file, compressed batch by batch."""
    if file.kind == JSONL:
        for batch in file.batches:
            write_lines(output, _lines(batch.column(0)))
        return
    write_arrow(output, file.batches)


def _lines(lines: pa.LargeBinaryArray) -> pa.Buffer:
    """The bytes of lines, one after the other."""
    _, offsets, data = lines.buffers()
    own = np.frombuffer(offsets, np.int64)[lines.offset : lines.offset + len(lines) + 1]
    return pa.py_buffer(b"") if data is None else data.slice(int(own[0]), int(own[-1] - own[0]))


def _require_room(folder: Folder, needed: int, *, is_begun: bool) -> None:
    """Raise StoreError if the disk has no room for so many bytes beside the reserve."""
    free = free_bytes(folder)
    if free is None or needed + RESERVE_BYTES <= free:
        return
    raise StoreError(
        "the disk is nearly full, and the copy of the rows is removed" if is_begun else "the disk is too small",
        f"at           {folder.path(SPOOL)}",
        f"free         {size(free)}, of which {size(RESERVE_BYTES)} stay free",
        f"needed       {size(needed)}{' for the next rows' if is_begun else ' for a copy of the rows'}",
        "Free some space and run it again with all rows, or choose another --out.",
        exit_code=TRY_AGAIN,
    )
