"""Read Arrow tables from files that another user may have written.

The columns, their types, the announced sizes and the positions of values are compared with the file before they are
used. Only plain types are accepted, so a file cannot contain code.
"""

from __future__ import annotations

import pyarrow as pa

from tokenmill.storage.untrusted.flatbuffers import Table
from tokenmill.storage.untrusted.malformed import MalformedDataError

# What pyarrow raises for bytes that it cannot read.
ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, LookupError, OverflowError, TypeError)

_MAGIC = b"ARROW1\0\0"
_RECORD_BATCH = 3


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
