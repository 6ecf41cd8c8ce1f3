"""A journal in an object store, where nothing can be appended to: lines are written in pieces, a new object each time.

A piece is called by the time and its writer, so that pieces of several writers sort by time.
"""

from __future__ import annotations

import secrets
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenmill.storage.objects.bucket import BucketFolder

MIN_SECONDS = 5.0
MAX_SECONDS = 30.0
"""How long lines wait to be written: longer, the longer it goes on, so that the pieces of a week can be listed."""


class Journal:
    """This process's share of a journal."""

    def __init__(self, folder: BucketFolder, name: str) -> None:
        self._folder = folder
        self._directory = name.partition(".")[0]
        self._ending = name.partition(".")[2]
        self._writer = f"{socket.gethostname().split('.')[0]}-{secrets.token_hex(4)}"
        self._lines = b""
        self._began = self._written = time.monotonic()

    def append(self, lines: bytes) -> None:
        """Take some lines, and write those that have waited long enough."""
        self._lines += lines
        waited, going = time.monotonic() - self._written, time.monotonic() - self._began
        if waited >= min(max(MIN_SECONDS, going / 20), MAX_SECONDS):
            self.flush()

    def flush(self) -> None:
        """Write the lines that wait."""
        if self._lines:
            self._publish()

    def _publish(self) -> None:
        with self._folder.publish(f"{self._directory}/{_stamp(time.time())}-{self._writer}.{self._ending}") as file:
            file.write(self._lines)
        self._lines, self._written = b"", time.monotonic()


def _stamp(seconds: float) -> str:
    return f"{int(seconds * 1000):014d}"
