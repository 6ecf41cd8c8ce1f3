"""Read Arrow and Parquet tables from files that another user may have written.

The columns, their types, the announced sizes and the positions of values are compared with the file before they are
used. Only plain types are accepted, so a file cannot contain code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokenmill.storage.untrusted.flatbuffers import Table
from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.storage.untrusted.parquet_pages import UnpackedSize, count_pages, read_groups

FACTOR = 64  # memory of a table per byte of its file; the tables of tokenmill take less than 30
SPARE = 1 << 20  # allowed on top of that, in bytes, values and rows: small files have no meaningful factor

# What pyarrow raises for bytes that it cannot read.
ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, LookupError, OverflowError, TypeError)

_MAGIC = b"ARROW1\0\0"
_RECORD_BATCH = 3


def read_parquet(
    data: pa.Buffer,
    schema: pa.Schema | tuple[pa.Schema, ...] | None = None,
    optional: Collection[str] | None = (),
    wanted: Collection[str] | None = None,
    extra_bytes: int = 0,
) -> pa.Table:
    """Read a Parquet table. Raises MalformedDataError for anything unexpected.

    Args:
        data: The file.
        schema: The columns it must have, if they are known; or several schemas, of which it has one.
        optional: The columns that may contain nulls. None stands for all.
        wanted: The columns to read; all by default.
        extra_bytes: The memory that the table may take beyond what its file's size allows.
    """
    groups = read_groups(data)
    unpacked = count_pages(data, groups)
    limit = FACTOR * data.size + SPARE + extra_bytes
    if max(unpacked.unpacked_bytes, unpacked.max_values, sum(group.rows for group in groups)) > limit:
        raise MalformedDataError(
            f"{data.size} bytes would become {unpacked.unpacked_bytes} bytes and {unpacked.max_values} values"
        )
    try:
        reader = pq.ParquetFile(pa.BufferReader(data))
        columns = reader.schema_arrow
        schemas = (schema,) if isinstance(schema, pa.Schema) else schema
        if schemas is not None and not any(columns.equals(each) for each in schemas):
            raise MalformedDataError(f"its columns are {describe(columns)}; expected {describe(schemas[0])}")
        columns = pa.schema([field for field in columns if wanted is None or field.name in wanted], columns.metadata)
        tables = list(_read_groups(data, _packed_texts(reader.schema, unpacked), columns, limit))
        table = pa.concat_tables(tables) if tables else columns.empty_table()
        table.validate(full=True)
    except ARROW_ERRORS as error:
        raise MalformedDataError(str(error)) from error
    for name in set(columns.names) - set(columns.names if optional is None else optional):
        if table[name].null_count:
            raise MalformedDataError(f"{name} has no value in some row")
    return table


def count_rows(tail: pa.Buffer, file_bytes: int) -> int:
    """The number of rows in a Parquet footer. Raises MalformedDataError if a file of this size cannot have them."""
    rows = sum(group.rows for group in read_groups(tail))
    if rows > FACTOR * file_bytes + SPARE:
        raise MalformedDataError(f"it cannot hold {rows} rows in {file_bytes} bytes")
    return rows


def _packed_texts(schema: pq.ParquetSchema, unpacked: UnpackedSize) -> list[str]:
    """The columns of texts that may be larger than their pages: they are read as dictionaries first."""
    leaves = [schema.column(index) for index in range(len(schema)) if index not in unpacked.plain_columns]
    return [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]


def _read_groups(data: pa.Buffer, texts: list[str], columns: pa.Schema, max_bytes: int) -> Iterator[pa.Table]:
    """The row groups, one at a time: each is in memory twice while the dictionaries of `texts` are expanded."""
    reader = pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts, pre_buffer=False)
    for group in range(reader.num_row_groups):
        packed = reader.read_row_group(group, columns.names, use_threads=False)  # each distinct text once
        size = sum(_text_bytes(chunk) for column in packed.columns for chunk in column.chunks)
        if size > max_bytes:
            raise MalformedDataError(f"its texts would take {size} bytes")
        max_bytes -= size
        yield packed.cast(columns)


def _text_bytes(array: pa.Array) -> int:
    """The bytes of the texts of a column, or of the columns in it, once each row has its own."""
    if pa.types.is_list(array.type):
        return _text_bytes(array.values)
    if pa.types.is_struct(array.type):
        return sum(_text_bytes(array.field(index)) for index in range(array.type.num_fields))
    if not pa.types.is_dictionary(array.type):
        return 0
    array.validate(full=True)
    lengths = pc.binary_length(array.dictionary).cast(pa.int64()).take(array.indices)
    return pc.sum(lengths).as_py() or 0


def read_batch(data: pa.Buffer, *schemas: pa.Schema) -> tuple[pa.Schema, pa.RecordBatch]:
    """The schema with its metadata, and the only batch of an Arrow file with one of these schemas.

    The batch is a view of the file. Its buffers lie inside the file, but their content is unchecked: offsets may point
    anywhere.
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
    """The schema of an Arrow file, from its first bytes."""
    try:
        return pa.ipc.read_schema(data.slice(8))
    except ARROW_ERRORS as error:
        raise MalformedDataError(str(error)) from error


def describe(schema: pa.Schema) -> str:
    """The columns in one line, for messages."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)[:300] or "none"


def _refuse_packed(view: memoryview) -> None:
    """Raise MalformedDataError unless the file has one batch, neither compressed nor with dictionaries.

    pyarrow would unpack a compressed batch of any announced size before it could be checked.
    """
    size = int.from_bytes(view[-10:-6], "little")
    if bytes(view[:8]) != _MAGIC or bytes(view[-6:]) != _MAGIC[:6] or not 4 <= size <= len(view) - 18:
        raise MalformedDataError("it is not an Arrow file")
    footer = Table(bytes(view[-10 - size : -10]))
    dictionaries, batches = footer.tuples(2, 3), footer.tuples(3, 3)  # start, header length, body length
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
