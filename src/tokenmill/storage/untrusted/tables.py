"""Arrow and Parquet from files that somebody else may have written.

Nothing in them is believed before it was compared with what is on the disk: the columns and their types, how much there
will be of them, and that values lie inside the file. Code is never in them: only plain types pass.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokenmill.storage.untrusted.flatbuffers import Table
from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.storage.untrusted.parquet_pages import count_pages, read_groups

FACTOR = 64
"""A table takes at most so many times the memory that its file takes on the disk; ours take less than 30 times."""

SPARE = 1 << 20
"""What a table may hold beyond that, in bytes, values and rows: for small files there is no factor."""

ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, LookupError, OverflowError, TypeError)
"""What the library raises for bytes that it cannot read."""


def read_parquet(
    data: pa.Buffer,
    schema: pa.Schema | None = None,
    optional: Collection[str] = (),
    wanted: Collection[str] | None = None,
) -> pa.Table:
    """A table of exactly these columns, if they are known, which have no nulls unless they are optional.

    If only some of them are `wanted`, the others are not read.
    """
    groups = read_groups(data)
    held = count_pages(data, groups)
    most = FACTOR * data.size + SPARE
    if max(held.unpacked_bytes, held.most_values, sum(group.rows for group in groups)) > most:
        raise MalformedDataError(
            f"{data.size} bytes would become {held.unpacked_bytes} bytes and {held.most_values} values"
        )
    try:
        reader = pq.ParquetFile(pa.BufferReader(data))
        columns = reader.schema_arrow
        if schema is not None and not columns.equals(schema):
            raise MalformedDataError(f"its columns are {describe(columns)}; expected {describe(schema)}")
        columns = pa.schema([field for field in columns if wanted is None or field.name in wanted], columns.metadata)
        groups = list(_read_groups(data, reader.schema, columns, most))
        table = pa.concat_tables(groups) if groups else columns.empty_table()
        table.validate(full=True)
    except ARROW_ERRORS as error:
        raise MalformedDataError(str(error)) from error
    for name in set(columns.names) - set(optional):
        if table[name].null_count:
            raise MalformedDataError(f"{name} has no value in some row")
    return table


def count_rows(tail: pa.Buffer, file_bytes: int) -> int:
    """How many rows a table has, by its last bytes; no more than there can be in a file of this size."""
    rows = sum(group.rows for group in read_groups(tail))
    if rows > FACTOR * file_bytes + SPARE:
        raise MalformedDataError(f"it cannot hold {rows} rows in {file_bytes} bytes")
    return rows


def _read_groups(data: pa.Buffer, schema: pq.ParquetSchema, columns: pa.Schema, most_bytes: int) -> Iterator[pa.Table]:
    """The row groups, one after the other: each is in memory twice until its texts are in their rows."""
    leaves = [schema.column(place) for place in range(len(schema))]
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    reader = pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts, pre_buffer=False)
    for group in range(reader.num_row_groups):
        packed = reader.read_row_group(group, columns.names, use_threads=False)  # with every text once for all its rows
        size = sum(_text_bytes(chunk) for column in packed.columns for chunk in column.chunks)
        if size > most_bytes:
            raise MalformedDataError(f"its texts would take {size} bytes")
        most_bytes -= size
        yield packed.cast(columns)


def _text_bytes(array: pa.Array) -> int:
    """What the texts of a column, or of the columns in it, take in their rows."""
    if pa.types.is_list(array.type):
        return _text_bytes(array.values)
    if pa.types.is_struct(array.type):
        return sum(_text_bytes(array.field(place)) for place in range(array.type.num_fields))
    if not pa.types.is_dictionary(array.type):
        return 0
    array.validate(full=True)
    lengths = pc.binary_length(array.dictionary).cast(pa.int64()).take(array.indices)
    return pc.sum(lengths).as_py() or 0


def read_batch(data: pa.Buffer, *schemas: pa.Schema) -> tuple[pa.Schema, pa.RecordBatch]:
    """The one batch of an Arrow file of one of these schemas, as views of it, and the schema with its metadata.

    Buffers lie inside the file, but what is in them is not looked at: offsets may point anywhere.
    """
    try:
        _refuse_packed(memoryview(data).cast("B"))
        reader = pa.ipc.open_file(pa.BufferReader(data))
        if not any(reader.schema.equals(schema) for schema in schemas):
            raise MalformedDataError(f"its columns are {describe(reader.schema)}")
        batch = reader.get_batch(0)
        batch.validate()
    except ARROW_ERRORS as error:
        raise MalformedDataError(str(error)) from error
    if any(column.null_count for column in batch.columns):
        raise MalformedDataError("some of its values are null")
    return reader.schema, batch


def read_schema(data: pa.Buffer) -> pa.Schema:
    """The schema at the start of an Arrow file, of which only that start is needed."""
    try:
        return pa.ipc.read_schema(data.slice(8))
    except ARROW_ERRORS as error:
        raise MalformedDataError(str(error)) from error


def describe(schema: pa.Schema) -> str:
    """The columns in one line."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)[:300] or "none"


def _refuse_packed(view: memoryview) -> None:
    """Raise Damage unless the file has one batch and its body is as it is in memory: not packed, no dictionaries.

    The library unpacks what announces itself as packed, of whatever size, before anyone can look.
    """
    size = int.from_bytes(view[-10:-6], "little")
    if bytes(view[:8]) != _MAGIC or bytes(view[-6:]) != _MAGIC[:6] or not 4 <= size <= len(view) - 18:
        raise MalformedDataError("it is not an Arrow file")
    footer = Table(bytes(view[-10 - size : -10]))
    dictionaries, batches = footer.tuples(2, 3), footer.tuples(3, 3)  # each: its start, the length of its header, body
    if len(dictionaries) or len(batches) != 1:
        raise MalformedDataError(
            f"it has {len(batches)} batches and {len(dictionaries)} dictionaries, 1 and 0 expected"
        )
    start, length = int(batches[0, 0]), int(batches[0, 1]) & 0x7FFFFFFF  # 32 bits, then padding
    if not 8 <= start <= start + 8 <= start + length <= len(view) or bytes(view[start : start + 4]) != b"\xff" * 4:
        raise MalformedDataError("its batch is not inside the file")
    message = Table(bytes(view[start + 8 : start + length]))
    if message.number(1, "<B") != _RECORD_BATCH or message.child(2).has(3):
        raise MalformedDataError("its batch is packed")


_MAGIC = b"ARROW1\0\0"
_RECORD_BATCH = 3
