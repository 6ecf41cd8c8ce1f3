"""A lease in an object store: an object that its holder writes again and again."""

from __future__ import annotations

import contextlib
import secrets
import socket
import threading
import time
from typing import TYPE_CHECKING

import pyarrow as pa

from tokenmill.errors import TokenmillError

if TYPE_CHECKING:
    from tokenmill.storage.objects.bucket import BucketFolder


RENEW_SECONDS = 10.0


STALE_SECONDS = 45.0


class BucketLease:
    """An object that is written again and again while somebody has it."""

    def __init__(self, folder: BucketFolder, name: str) -> None:
        self._folder = folder
        self._name = name
        self._who = f"{socket.gethostname()} {secrets.token_hex(8)}"
        self._seen = b""
        self._since = 0.0
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self) -> bool:
        """Whether nobody has it, or whoever has it has not been seen to live for some time."""
        if self._folder.publish_if_absent(self._name, pa.py_buffer(self._body(0))) or self._read() == self._body(0):
            self._hold()
            return True
        seen = self._read()
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        if not seen or time.monotonic() - self._since < STALE_SECONDS:
            return False
        self._write(0)
        self._hold()
        return True

    def release(self) -> None:
        """Stop writing it, and remove it if it is still ours."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            with contextlib.suppress(TokenmillError):
                if self._read().startswith(self._who.encode()):
                    self._folder.discard(self._name)

    def _hold(self) -> None:
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def _renew(self) -> None:
        count = 0
        while not self._ended.wait(RENEW_SECONDS):
            count += 1
            with contextlib.suppress(TokenmillError):  # the next time, or somebody else takes it over
                self._write(count)

    def _body(self, count: int) -> bytes:
        return f"{self._who} {count}\n".encode()

    def _write(self, count: int) -> None:
        with self._folder.publish(self._name) as file:
            file.write(self._body(count))

    def _read(self) -> bytes:
        """What it says; nothing if it is not there."""
        try:
            return self._folder.read(self._name, 1000)
        except TokenmillError:
            if self._folder.exists(self._name):
                raise
            return b""
