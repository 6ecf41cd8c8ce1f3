"""Arrow IPC files and streams: a slice is a range of record batches, a row is the row number in the file.

An IPC file is a stream between two magic strings, and each message header holds the message length. So files and
streams are read alike: walking the headers finds the batches, and a slice is read as a stream without the other
batches. A record batch is the smallest unit of reading.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.sources.arrow_messages import (
    RECORD_BATCH,
    SCHEMA,
    Excerpt,
    Message,
    check_footer,
    first_batch,
    schema_message,
    walk,
)
from tokenmill.sources.columnar import (
    ColumnPath,
    FindColumn,
    checked_counts,
    finder,
    number_rows,
    number_values,
    pack,
    plain_column,
    read_text,
    refuse_conversations,
    sums,
    text_column,
)
from tokenmill.sources.documents import Columns, Documents, Int64Array, ReadOptions, Slice, Slices, SourceFile, Span
from tokenmill.sources.text_columns import template_of
from tokenmill.storage.untrusted.malformed import MalformedDataError

MAGIC = b"ARROW1"


@dataclass(frozen=True, slots=True)
class _Layout:
    messages: list[Message]
    paths: tuple[ColumnPath, ...]
    rows: Int64Array
    text_bytes: Int64Array


def split(file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:
    """Ranges of record batches that hold about `unit_bytes` of text each."""
    layout = _layout(file, template_of(options).names, finder(options))
    refuse_conversations(file, layout.paths, options)
    edges = pack(layout.text_bytes, unit_bytes)
    return Slices(edges[:-1], edges[1:], sums(layout.text_bytes, edges), sums(layout.rows, edges))


def byte_ranges(file: SourceFile, file_slice: Slice | None, options: ReadOptions) -> list[Span]:  # noqa: ARG001 - the protocol's signature
    """Empty: byte ranges are unknown until the message headers have been read."""
    return []


def read(file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
    """The rows of the record batches of the slice."""
    layout = _layout(file, template_of(options).names, finder(options))
    rows, batches = _read_batches(file, layout, file_slice)
    yield from number_rows(file, read_text(batches, layout.paths, options), rows, options)


def read_start(file: SourceFile, max_rows: int) -> tuple[int, pa.Table]:
    """The number of rows, and the first ones with all columns."""
    messages, schema = _read_messages(file)
    rows = sum(batch.rows for batch in _batches(messages))
    first = _project(file, messages, list(range(len(schema))), range(min(len(_batches(messages)), 1)))
    return rows, pa.Table.from_batches(map(_checked, first), schema).slice(0, max_rows)


def _read_batches(
    file: SourceFile, layout: _Layout, file_slice: Slice | None
) -> tuple[range, Iterator[pa.RecordBatch]]:
    """The rows of a slice, or of the whole file, and its record batches with the columns of the layout."""
    start, stop = (0, len(layout.rows)) if file_slice is None else (file_slice.start, file_slice.stop)
    first = int(layout.rows[:start].sum())
    rows = range(first, first + int(layout.rows[start:stop].sum()))
    columns = sorted({path.column for path in layout.paths})
    return rows, map(_checked, _project(file, layout.messages, columns, range(start, stop)))


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The batch. Raises if nested columns are damaged, before any code follows their offsets."""
    for column in batch.columns:
        if pa.types.is_nested(column.type):
            column.validate(full=True)
    return batch


def require_columns(file: SourceFile, names: tuple[str, ...]) -> None:
    """Raise SourceError if the schema lacks one of these columns, or one is nested."""
    _layout(file, names, plain_column)


def read_columns(
    file: SourceFile, file_slice: Slice | None, names: tuple[str, ...], options: ReadOptions
) -> Iterator[Columns]:
    """The values of some columns in the record batches of the slice."""
    del options
    layout = _layout(file, names, plain_column)
    rows, batches = _read_batches(file, layout, file_slice)
    yield from number_values(file, batches, rows, dict(zip(names, layout.paths, strict=True)))


def _project(file: SourceFile, messages: list[Message], indices: list[int], batches: range) -> Iterator[pa.RecordBatch]:
    """Record batches with some of their columns."""
    projection = pa.ipc.IpcReadOptions(included_fields=indices, use_threads=False)
    needed = list(_needed(messages, batches.start, batches.stop))
    spans = [(message.start, message.stop) for message in needed if not message.data]
    with (
        storage.open_input(file.info, spans, keep=True) as stream,
        pa.ipc.open_stream(Excerpt(stream, needed), options=projection) as reader,
    ):
        yield from reader


def _needed(messages: list[Message], start: int, stop: int) -> Iterator[Message]:
    """The messages needed to read batches [start, stop): the schema, all dictionaries before `stop`, the batches."""
    index = 0
    for message in messages:
        if index >= stop:
            return
        is_batch = message.kind == RECORD_BATCH
        if not is_batch or index >= start:
            yield message
        index += is_batch


# Consecutive units often read the same file: keep the last two layouts.
@functools.lru_cache(maxsize=2)
def _layout(file: SourceFile, names: tuple[str, ...], find: FindColumn = text_column) -> _Layout:
    messages, schema = _read_messages(file)
    paths = tuple(find(file, schema, name) for name in names)
    batches = _batches(messages)
    rows = checked_counts("rows of each record batch", [batch.rows for batch in batches])
    return _Layout(messages, paths, rows, _text_bytes(schema, paths, batches))


@functools.lru_cache(maxsize=2)
def _read_messages(file: SourceFile) -> tuple[list[Message], pa.Schema]:
    with storage.open_input(file.info) as stream:
        messages = _messages(file, stream)
        if [index for index, message in enumerate(messages) if message.kind == SCHEMA] != [0]:
            raise SourceError("a source is neither an Arrow file nor an Arrow stream", f"file         {file.path}")
        with pa.ipc.open_stream(Excerpt(stream, messages[:1])) as reader:
            return messages, reader.schema


def _messages(file: SourceFile, stream: pa.NativeFile) -> list[Message]:
    """The messages of a file or stream. A stream must have its end mark and a file its footer."""
    if stream.read(len(MAGIC)) != MAGIC:
        return list(walk(stream, 0, file.size, needs_end=True))
    stream.seek(max(file.size - 10, 0))
    ending = stream.read(10)
    if ending[4:] != MAGIC:
        raise EOFError("the file has no footer: it breaks off, or its writer was stopped")
    footer = file.size - 10 - int.from_bytes(ending[:4], "little")
    try:
        messages = list(walk(stream, 8, footer, needs_end=False))
    except (EOFError, MalformedDataError):
        first = first_batch(stream, footer, file.size - 10)
        if first is None or not len(MAGIC) < first < footer:
            raise
        schema = schema_message(pa.ipc.open_file(stream).schema)
        messages = [schema, *walk(stream, first, footer, needs_end=False)]
    check_footer(stream, footer, file.size - 10, _batches(messages))
    pa.ipc.open_file(stream)  # validates more of the footer than check_footer does
    return messages


def _batches(messages: list[Message]) -> list[Message]:
    return [message for message in messages if message.kind == RECORD_BATCH]


def _text_bytes(schema: pa.Schema, paths: tuple[ColumnPath, ...], batches: list[Message]) -> Int64Array:
    """The bytes of a column in each batch: the size of its data buffer, or of the batch if the column has none."""
    kinds = [field.type for field in schema]
    column = paths[0].column
    before = sum(len(pa.nulls(0, kind).buffers()) for kind in kinds[:column] if kind != pa.null())
    is_plain = len(paths) == 1 and any(
        kinds[column] == kind for kind in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary())
    )
    sizes = [
        batch.buffer_bytes[before + 2]
        if is_plain and before + 2 < len(batch.buffer_bytes)
        else batch.stop - batch.start
        for batch in batches
    ]
    return checked_counts("sizes of its buffers", [int(size) for size in sizes])
