"""Heads and bodies of HTTP/1.1 messages, read from one socket and passed on to another as they are."""

from __future__ import annotations

import io
import socket
from collections.abc import Callable
from dataclasses import dataclass

CHUNK_BYTES = 1 << 18
"""The most that is read at once. Large, so that a body of many megabytes takes few turns."""

HEAD_LINES = 200


class Broken(Exception):
    """The other side ended the connection in the middle of a message."""


class Cut(Exception):
    """As much of a body was passed on as was wanted."""


@dataclass(frozen=True)
class Head:
    """The first lines of a message: as they came, and what they say about its body."""

    lines: list[bytes]

    @property
    def words(self) -> list[str]:
        """The first line: method, path and version, or version, status and reason."""
        return self.lines[0].decode("latin-1").split(None, 2)

    @property
    def status(self) -> int:
        """The status of an answer."""
        return int(self.words[1])

    def value(self, name: str) -> str:
        """The value of a header in lower case; empty if there is none."""
        prefix = name.lower().encode() + b":"
        for line in self.lines[1:]:
            if line.lower().startswith(prefix):
                return line[len(prefix) :].strip().decode("latin-1").lower()
        return ""

    def without(self, name: str) -> Head:
        """The same head without a header."""
        prefix = name.lower().encode() + b":"
        return Head([line for line in self.lines if not line.lower().startswith(prefix)])

    def to_bytes(self) -> bytes:
        """The head as it goes over the wire."""
        return b"".join(self.lines) + b"\r\n"

    @property
    def closes(self) -> bool:
        """Whether the connection ends with this message."""
        connection, first = self.value("connection"), self.lines[0]
        return "close" in connection or (b"HTTP/1.0" in first and "keep-alive" not in connection)


def read_head(stream: io.BufferedReader) -> Head | None:
    """The head of the next message, or None if there is none because the connection was closed."""
    lines: list[bytes] = []
    while (line := stream.readline(1 << 16)) not in {b"\r\n", b"\n"}:
        if not line:
            if lines:
                raise Broken
            return None
        lines.append(line)
        if len(lines) > HEAD_LINES:
            raise Broken
    return Head(lines)


@dataclass
class Pump:
    """Passes bodies on. `count` is told how many bytes are about to be sent, `limit` is how many may be."""

    buffer: memoryview
    count: Callable[[int], None]
    limit: int | None = None

    def request_body(self, head: Head, source: io.BufferedReader, target: socket.socket | None) -> None:
        """Pass on the body of a request, or throw it away if there is no target."""
        if "chunked" in head.value("transfer-encoding"):
            self._chunked(source, target)
        else:
            self._exactly(int(head.value("content-length") or 0), source, target)

    def answer_body(self, method: str, head: Head, source: io.BufferedReader, target: socket.socket | None) -> None:
        """Pass on the body of an answer to a request with this method, or throw it away if there is no target."""
        if method == "HEAD" or head.status in {204, 304} or head.status < 200:
            return
        if "chunked" in head.value("transfer-encoding"):
            self._chunked(source, target)
        elif length := head.value("content-length"):
            self._exactly(int(length), source, target)
        else:
            while self._some(CHUNK_BYTES, source, target):
                pass

    def _chunked(self, source: io.BufferedReader, target: socket.socket | None) -> None:
        while True:
            line = source.readline(1 << 16)
            if not line.endswith(b"\n"):
                raise Broken
            _send(target, line)
            size = int(line.split(b";")[0], 16)
            self._exactly(size, source, target)
            if not size:
                break
            _send(target, source.readline(1 << 16))
        while (line := source.readline(1 << 16)) not in {b"\r\n", b""}:  # trailers
            _send(target, line)
        _send(target, line)

    def _exactly(self, length: int, source: io.BufferedReader, target: socket.socket | None) -> None:
        while length > 0:
            passed = self._some(length, source, target)
            if not passed:
                raise Broken
            length -= passed

    def _some(self, most: int, source: io.BufferedReader, target: socket.socket | None) -> int:
        if self.limit is not None:
            most = min(most, self.limit)
            if not most:
                raise Cut
        size = source.readinto1(self.buffer[:most])
        if self.limit is not None:
            self.limit -= size
        self.count(size)
        _send(target, self.buffer[:size])
        return size


def _send(target: socket.socket | None, data: bytes | memoryview) -> None:
    if target is not None:
        target.sendall(data)
