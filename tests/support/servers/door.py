"""The way from the machines of a network to a server on this machine's loopback."""

from __future__ import annotations

import contextlib
import ctypes
import math
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CLONE_NEWNET = 0x40000000
CHUNK_BYTES = 1 << 16


class Door:
    """Passes connections to an address in a namespace on to the same port of this machine's loopback.

    Set `bytes_per_second`, and no more goes through: then things take their time however fast this machine is.
    """

    def __init__(self, namespace: Path, address: str, port: int) -> None:
        self.port = port
        self.bytes_per_second = math.inf
        self.one_at_a_time = threading.Lock()
        self.listener = _listener(namespace, address, port)
        self.open: set[socket.socket] = set()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def close(self) -> None:
        """Stop listening, and end the connections."""
        for each in [self.listener, *self.open]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client = self.listener.accept()[0]
            except OSError:
                return  # closed
            threading.Thread(target=self._relay, args=(client,), daemon=True).start()

    def _relay(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port)) as server:
            pair = {client, server}
            self.open |= pair
            answers = threading.Thread(target=self._pump, args=(server, client), daemon=True)
            answers.start()
            self._pump(client, server)
            answers.join()
            self.open -= pair

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(CHUNK_BYTES):
                with self.one_at_a_time:
                    time.sleep(len(data) / self.bytes_per_second)
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


def _listener(namespace: Path, address: str, port: int) -> socket.socket:
    """A socket in a namespace. It is the thread that enters one, and what it has made stays there."""

    def listen() -> socket.socket:
        with open(namespace, "rb") as handle:
            libc = ctypes.CDLL(None, use_errno=True)
            if libc.setns(handle.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), f"cannot enter the namespace {namespace}")
        return socket.create_server((address, port))

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(listen).result()
