"""A journal in an object store, where nothing can be appended to: lines are written in pieces, a new object each time.

A piece is called by the time and its writer, so that pieces of several writers sort by time.
"""

from __future__ import annotations

import secrets
import socket
import time
from typing import TYPE_CHECKING

from tokenmill.storage import objects

if TYPE_CHECKING:
    from tokenmill.storage.bucket import BucketFolder

LEAST_SECONDS = 5.0
MOST_SECONDS = 30.0
"""How long lines wait to be written: longer, the longer it goes on, so that the pieces of a week can be listed."""

ALIVE_SECONDS = 2 * MOST_SECONDS
END = "end"


class Journal:
    """This process's share of a journal, and the end of everybody's."""

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
        if waited >= min(max(LEAST_SECONDS, going / 20), MOST_SECONDS):
            self.flush()

    def flush(self) -> None:
        """Write the lines that wait."""
        if self._lines:
            self._publish(self._ending)

    def close(self) -> None:
        """Write the lines that wait, and that there will be no more."""
        self._publish(f"{END}.{self._ending}")

    def _publish(self, ending: str) -> None:
        with self._folder.publish(f"{self._directory}/{_stamp(time.time())}-{self._writer}.{ending}") as file:
            file.write(self._lines)
        self._lines, self._written = b"", time.monotonic()

    def tail(self, limit_bytes: int) -> bytes:
        """The last lines of all writers, whole pieces of them."""
        found = b""
        for name in reversed(self._pieces()):
            found = self._folder.read(f"{self._directory}/{name}") + found
            if len(found) >= limit_bytes:
                break
        return found

    def writer(self) -> str | None:
        """The machine of one who wrote a piece a moment ago, and no last one."""
        recent = [piece.split(".") for piece in self._pieces() if piece >= _stamp(time.time() - ALIVE_SECONDS)]
        writers = {name.partition("-")[2]: ending[0] == END for name, *ending in recent}  # the last piece counts
        alive = [writer for writer, has_ended in writers.items() if not has_ended]
        return alive[-1].rpartition("-")[0] if alive else None

    def _pieces(self) -> list[str]:
        """The names of the pieces, in order."""
        root = self._folder.path(self._directory)
        names = [file.path[len(root) + 1 :] for file in objects.below(root)]
        return sorted(name for name in names if name.endswith(f".{self._ending}"))


def _stamp(seconds: float) -> str:
    return f"{int(seconds * 1000):014d}"
