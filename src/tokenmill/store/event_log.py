"""The event log of a run: one line of JSON per event. It is for people; no result depends on it.

Each rank has its own log, because not every shared disk lets several machines append to one file. In an object store
the log is a directory to which every process adds objects (see storage.journal).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from tokenmill.errors import TokenmillError
from tokenmill.store.layout import LOG

if TYPE_CHECKING:
    from tokenmill.storage import Folder

TAIL_BYTES = 1 << 16


def path(folder: Folder, rank: int | None = None) -> str:
    """The path of the log, for messages."""
    return folder.path(LOG.partition(".")[0] if folder.is_remote else _name(rank))


def line(event: str, **fields: Any) -> bytes:
    """Encode an event with the current time."""
    return msgspec.json.encode({"time": round(time.time(), 3), "event": event, **fields}) + b"\n"


def append(folder: Folder, lines: list[bytes], rank: int | None = None) -> None:
    """Append lines to the log."""
    folder.append(LOG if folder.is_remote else _name(rank), b"".join(lines))


def last_line(folder: Folder, rank: int | None = None) -> bytes:
    """The last line of a log on a disk; empty if the log is missing or unreadable."""
    try:
        size = folder.size(_name(rank))
        tail = folder.read_at(_name(rank), max(size - TAIL_BYTES, 0), min(size, TAIL_BYTES))
    except TokenmillError:
        return b""
    return tail.rstrip(b"\n").rpartition(b"\n")[2]


def _name(rank: int | None) -> str:
    return LOG if rank is None else LOG.replace(".", f"-{rank}.")
