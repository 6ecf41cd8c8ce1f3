"""Find the messages of an Arrow IPC stream by their headers, without reading their bodies.

A message is a length, a flatbuffers table (format/Message.fbs in apache/arrow) and a body. pyarrow only reads whole
messages in sequence. This module reads from the table the few numbers that are needed to skip a body.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenmill.sources.documents import Int64Array
from tokenmill.storage.untrusted.flatbuffers import Table

SCHEMA, DICTIONARY, RECORD_BATCH = 1, 2, 3
VERSIONS = (3, 4)  # metadata versions V4 and V5; earlier ones were never released
MAX_PADDING = 64  # bytes that may follow the end mark
CONTINUATION = 0xFFFFFFFF
MAX_HEADER_BYTES = 1 << 28


@dataclass(frozen=True, slots=True)
class Message:
    """One message in the bytes [start, stop). Only a record batch has rows and buffer sizes.

    `data` is the message itself if the file does not have it as a message.
    """

    kind: int
    start: int
    stop: int
    rows: int
    buffer_bytes: Int64Array
    data: bytes = b""


def walk(stream: pa.NativeFile, position: int, stop: int, *, needs_end: bool) -> Iterator[Message]:
    """The messages from a position on, up to the end mark, or to `stop` if no end mark is needed.

    Raises EOFError if more than padding follows the end mark, because those bytes would be silently ignored.
    """
    is_old = False  # Arrow before 0.15 wrote no continuation marks
    first = position
    while position < stop or needs_end:
        stream.seek(position)
        prefix = stream.read(8).ljust(8, b"\xff")
        continuation, length = struct.unpack("<Ii", prefix)
        start, prefix_bytes = position, 8
        is_old = continuation != CONTINUATION if position == first else is_old
        if is_old:
            length, prefix_bytes = struct.unpack("<i4x", prefix)[0], 4
        elif continuation != CONTINUATION:
            raise EOFError(f"no message begins at byte {start}: the file is damaged there, or before")
        if length == 0:
            if stop - position - prefix_bytes > MAX_PADDING:
                raise EOFError(f"the messages end at byte {position}, and {stop - position:,} bytes follow")
            return
        message = _message(stream, start, position + prefix_bytes, length, stop)
        position = message.stop
        yield message


def _message(stream: pa.NativeFile, start: int, position: int, length: int, stop: int) -> Message:
    if not 0 < length <= min(stop - position, MAX_HEADER_BYTES):
        raise EOFError(f"the message at byte {start} is damaged or the file breaks off there")
    stream.seek(position)
    table = Table(stream.read(length))
    body_bytes = table.number(3, "<q")
    end = position + length + body_bytes
    if body_bytes < 0 or end > stop:
        raise EOFError(f"the message at byte {start} goes on after the end of the file")
    kind = table.number(1, "<B")
    if kind not in (SCHEMA, DICTIONARY, RECORD_BATCH) or table.number(0, "<h") not in VERSIONS:
        raise EOFError(f"the message at byte {start} is damaged: its type is not part of a table")
    if kind != RECORD_BATCH:
        return Message(kind, start, end, 0, np.empty(0, dtype=np.int64))
    batch = table.child(2)
    buffers = batch.tuples(2, 2)
    if ((buffers < 0) | (buffers > body_bytes)).any():
        raise EOFError(f"the message at byte {start} is damaged: its buffers lie outside of it")
    return Message(kind, start, end, batch.number(0, "<q"), buffers[:, 1])


def schema_message(schema: pa.Schema) -> Message:
    """A message for a schema that only the footer of a file has. Polars writes such files."""
    data = schema.serialize().to_pybytes()
    return Message(SCHEMA, 0, len(data), 0, np.empty(0, dtype=np.int64), data)


def first_batch(stream: pa.NativeFile, start: int, stop: int) -> int | None:
    """The position of the first record batch that the footer in the bytes [start, stop) lists.

    None if there is no batch, or if there are dictionaries: only a schema message gives their numbers.
    """
    stream.seek(start)
    footer = Table(stream.read(stop - start))
    batches = footer.tuples(3, 3)
    return None if len(footer.tuples(2, 3)) or not len(batches) else int(batches[0, 0])


def check_footer(stream: pa.NativeFile, start: int, stop: int, batches: list[Message]) -> None:
    """Raise EOFError unless the footer in the bytes [start, stop) lists exactly these record batches."""
    stream.seek(start)
    blocks = Table(stream.read(stop - start)).tuples(3, 3)  # (offset, header length, body length)
    expected = [(batch.start, batch.stop - batch.start) for batch in batches]
    headers = blocks[:, 1] & 0x7FFFFFFF  # the field has 32 bits and is followed by padding
    if list(zip(blocks[:, 0].tolist(), (headers + blocks[:, 2]).tolist(), strict=True)) != expected:
        raise EOFError(f"its footer lists other record batches ({len(blocks)}) than it has ({len(batches)})")


class Excerpt(io.RawIOBase):
    """A stream that consists of some messages of another stream."""

    def __init__(self, stream: pa.NativeFile, messages: Iterable[Message]) -> None:
        super().__init__()
        self._stream = stream
        self._messages = iter(messages)
        self._position = self._stop = 0
        self._data = b""

    def readable(self) -> bool:
        """Always True; writing and seeking are not supported."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next `size` bytes; fewer only at the end."""
        chunks = []
        while size and self._advance():
            remaining = self._stop - self._position
            data = self._next_bytes(remaining if size < 0 else min(remaining, size))
            if not data:
                raise EOFError("the file ends too early")
            self._position += len(data)
            size -= len(data) if size > 0 else 0
            chunks.append(data)
        return b"".join(chunks)

    def _next_bytes(self, size: int) -> bytes:
        if self._data:
            return self._data[self._position : self._position + size]
        self._stream.seek(self._position)
        return bytes(self._stream.read(size))

    def _advance(self) -> bool:
        while self._position == self._stop:
            message = next(self._messages, None)
            if message is None:
                return False
            self._position, self._stop, self._data = message.start, message.stop, message.data
        return True
