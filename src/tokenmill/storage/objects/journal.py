"""A journal in an object store. Objects cannot be appended to, so each write makes a new object.

The object's name begins with the time, so that the objects of several writers sort by time.
"""

from __future__ import annotations

import secrets
import socket
import time

from tokenmill.storage.folder import Folder

# Lines wait at least MIN_SECONDS. The wait grows with the age of the journal, up to MAX_SECONDS, so that a journal of a
# week still has few enough objects to list.
MIN_SECONDS = 5.0
MAX_SECONDS = 30.0


class Journal:
    """The objects of a journal that this process writes."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._folder = folder
        self._directory, _, self._suffix = name.partition(".")
        self._writer = f"{socket.gethostname().split('.')[0]}-{secrets.token_hex(4)}"
        self._lines = b""
        self._created = self._flushed = time.monotonic()

    def append(self, lines: bytes) -> None:
        """Buffer lines, and write the buffer if it has waited long enough."""
        self._lines += lines
        now = time.monotonic()
        if now - self._flushed >= min(max(MIN_SECONDS, (now - self._created) / 20), MAX_SECONDS):
            self.flush()

    def flush(self) -> None:
        """Write the buffered lines."""
        if not self._lines:
            return
        milliseconds = int(time.time() * 1000)
        with self._folder.publish(f"{self._directory}/{milliseconds:014d}-{self._writer}.{self._suffix}") as file:
            file.write(self._lines)
        self._lines, self._flushed = b"", time.monotonic()
