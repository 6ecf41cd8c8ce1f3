"""One client's connection through the proxy, with the connection to the server that goes with it."""

from __future__ import annotations

import io
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from tests.support.servers.faults import Fault
from tests.support.servers.http_messages import CHUNK_BYTES, Broken, Cut, Head, Pump, read_head

CONNECT_SECONDS = 5.0
BAD_GATEWAY = b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n"
BY_RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: the client is to see an error, not an end."""


@dataclass
class Exchange:
    """One request and its answer. All is counted before it is sent: whoever has the answer finds it counted."""

    method: str
    path: str
    range: str
    fault: Fault
    status: int | None = None
    bytes_up: int = 0
    bytes_down: int = 0

    def count_up(self, size: int) -> None:
        """Count a piece of the request's body."""
        self.bytes_up += size

    def count_down(self, size: int) -> None:
        """Count a piece of the answer's body."""
        self.bytes_down += size


@dataclass(frozen=True, slots=True)
class Upstream:
    """A connection to the server, and the reader of its answers."""

    connection: socket.socket
    answers: io.BufferedReader


class Relay:
    """Passes the requests of one client on. `begin` records a request, `pause` waits and tells whether all is over."""

    def __init__(
        self,
        client: socket.socket,
        upstream_port: int,
        begin: Callable[[Head], Exchange],
        pause: Callable[[Exchange], bool],
    ) -> None:
        self.client, self.upstream_port, self.begin, self.pause = client, upstream_port, begin, pause
        self.from_client = _buffered(client)
        self.server: Upstream | None = None
        self.buffer = memoryview(bytearray(CHUNK_BYTES))

    def run(self) -> None:
        """Pass requests on, one after the other, until either side closes; then close both."""
        broken = True
        try:
            with suppress(OSError, Broken, Cut):
                while (head := read_head(self.from_client)) and self._serve(head):
                    pass
                broken = False
        finally:
            self._leave_server()
            if broken:
                with suppress(OSError):
                    self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, BY_RESET)
            self.from_client.close()
            self.client.close()

    def interrupt(self) -> None:
        """Wake the thread that runs this, from another, so that it ends."""
        server = self.server  # the other thread may set it to None meanwhile
        for side in [self.client] if server is None else [self.client, server.connection]:
            with suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def _serve(self, head: Head) -> bool:
        """Answer one request; whether the connection can be used for another."""
        exchange = self.begin(head)
        if self.pause(exchange):
            raise Broken
        if "100-continue" in head.value("expect"):
            self.client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = head.without("expect")
        if exchange.fault.unconditional:
            head = head.without("if-none-match")
        if exchange.fault.status is not None:
            self._refuse(head, exchange, exchange.fault.status, exchange.fault.answer(exchange.method))
        elif (server := self._join_server()) is None:
            self._refuse(head, exchange, 502, BAD_GATEWAY)
        else:
            server.connection.sendall(head.to_bytes())
            Pump(self.buffer, exchange.count_up).request_body(head, self.from_client, server.connection)
            return self._pass_answer(exchange, server.answers) and not head.closes
        return not head.closes

    def _refuse(self, head: Head, exchange: Exchange, status: int, answer: bytes) -> None:
        """Answer in place of the server."""
        Pump(self.buffer, exchange.count_up).request_body(head, self.from_client, None)
        exchange.status = status
        self.client.sendall(answer)

    def _pass_answer(self, exchange: Exchange, answers: io.BufferedReader) -> bool:
        """Pass the server's answer on, as far as the fault lets it; whether the connection stays."""
        head = read_head(answers)
        while head and head.status < 200:
            head = read_head(answers)
        if head is None:
            raise Broken
        exchange.status = head.status
        if exchange.fault.lose:
            Pump(self.buffer, lambda _: None).answer_body(exchange.method, head, answers, None)
            raise Cut
        self.client.sendall(head.to_bytes())
        pump = Pump(self.buffer, exchange.count_down, limit=exchange.fault.cut)
        pump.answer_body(exchange.method, head, answers, self.client)
        if exchange.fault.cut is not None:
            raise Cut
        return not head.closes

    def _join_server(self) -> Upstream | None:
        """The connection to the server, if the server accepts one. A connection that it has closed is replaced."""
        if self.server is not None and not _idle(self.server.connection):
            self._leave_server()
        if self.server is None:
            try:
                connection = socket.create_connection(("127.0.0.1", self.upstream_port), CONNECT_SECONDS)
            except OSError:
                return None
            connection.settimeout(None)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.server = Upstream(connection, _buffered(connection))
        return self.server

    def _leave_server(self) -> None:
        if self.server is not None:
            self.server.answers.close()
            self.server.connection.close()
            self.server = None


def _buffered(connection: socket.socket) -> io.BufferedReader:
    """A reader of what the other side sends. `makefile` is typed as any file, and returns this class for "rb"."""
    reader = connection.makefile("rb", CHUNK_BYTES)
    assert isinstance(reader, io.BufferedReader)
    return reader


def _idle(connection: socket.socket) -> bool:
    """Whether a connection is open and says nothing, as it should between two requests."""
    try:
        connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
