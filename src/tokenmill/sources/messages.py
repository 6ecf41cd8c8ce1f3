"""The messages of an Arrow IPC stream, found by their headers, without their bodies being read.

A message is a length, a flatbuffers table (format/Message.fbs in apache/arrow) and a body. pyarrow reads messages only
whole and one after the other; the few numbers needed to skip a body are taken from the table here.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenmill.sources.documents import Int64Array

SCHEMA, RECORD_BATCH = 1, 3
CONTINUATION = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class Message:
    """One message in the bytes [start, stop); rows and buffer sizes are those of a record batch."""

    kind: int
    start: int
    stop: int
    rows: int
    buffer_bytes: Int64Array


def walk(stream: pa.NativeFile, position: int, stop: int, *, needs_end: bool) -> Iterator[Message]:
    """The messages from a position on, up to the end mark, or to `stop` where no end mark is needed."""
    while position < stop or needs_end:
        stream.seek(position)
        prefix = stream.read(8).ljust(8, b"\xff")
        continuation, length = struct.unpack("<Ii", prefix)
        start, prefix_bytes = position, 8
        if continuation != CONTINUATION:  # written before Arrow 0.15
            length, prefix_bytes = struct.unpack("<i4x", prefix)[0], 4
        if length == 0:
            return
        message = _message(stream, start, position + prefix_bytes, length, stop)
        position = message.stop
        yield message


def _message(stream: pa.NativeFile, start: int, position: int, length: int, stop: int) -> Message:
    if not 0 < length <= stop - position:
        raise EOFError(f"the message at byte {start} is damaged or the file breaks off there")
    stream.seek(position)
    table = _Table(stream.read(length))
    body_bytes = table.number(3, "<q")
    end = position + length + body_bytes
    if body_bytes < 0 or end > stop:
        raise EOFError(f"the message at byte {start} goes on after the end of the file")
    kind = table.number(1, "<B")
    if kind != RECORD_BATCH:
        return Message(kind, start, end, 0, np.empty(0, dtype=np.int64))
    batch = table.child(2)
    return Message(kind, start, end, batch.number(0, "<q"), batch.pairs(2)[:, 1])


class _Table:
    """A table of flatbuffers: fields are found through a list of offsets; one that is not there is zero."""

    def __init__(self, data: bytes, position: int | None = None) -> None:
        self.data = data
        self.position = self._at("<I", 0) if position is None else position

    def _at(self, layout: str, position: int) -> int:
        try:
            return int(struct.unpack_from(layout, self.data, position)[0])
        except struct.error as error:
            raise EOFError("the header of a message is damaged") from error

    def _field(self, index: int) -> int | None:
        fields = self.position - self._at("<i", self.position)
        place = 4 + 2 * index
        offset = self._at("<H", fields + place) if place < self._at("<H", fields) else 0
        return self.position + offset if offset else None

    def number(self, index: int, layout: str) -> int:
        """A field that is a number."""
        field = self._field(index)
        return 0 if field is None else self._at(layout, field)

    def child(self, index: int) -> _Table:
        """A field that is a table."""
        field = self._field(index)
        if field is None:
            raise EOFError("the header of a message is damaged")
        return _Table(self.data, field + self._at("<I", field))

    def pairs(self, index: int) -> Int64Array:
        """A field that is a list of pairs of 64-bit numbers."""
        field = self._field(index)
        if field is None:
            return np.empty((0, 2), dtype=np.int64)
        start = field + self._at("<I", field)
        count = self._at("<I", start)
        if start + 4 + 16 * count > len(self.data):
            raise EOFError("the header of a message is damaged")
        return np.frombuffer(self.data, dtype="<i8", count=2 * count, offset=start + 4).reshape(-1, 2)


class Excerpt(io.RawIOBase):
    """Some messages of a stream as a stream of its own."""

    def __init__(self, stream: pa.NativeFile, messages: Iterable[Message]) -> None:
        super().__init__()
        self._stream = stream
        self._messages = iter(messages)
        self._position = self._stop = 0

    def readable(self) -> bool:
        """It can be read, and that is all."""
        return True

    def read(self, size: int = -1) -> bytes:
        """The next bytes, fewer only at the end."""
        found = []
        while size and self._advance():
            left = self._stop - self._position
            self._stream.seek(self._position)
            data = self._stream.read(left if size < 0 else min(left, size))
            if not data:
                raise EOFError("the file ends too early")
            self._position += len(data)
            size -= len(data) if size > 0 else 0
            found.append(data)
        return b"".join(found)

    def _advance(self) -> bool:
        while self._position == self._stop:
            message = next(self._messages, None)
            if message is None:
                return False
            self._position, self._stop = message.start, message.stop
        return True
