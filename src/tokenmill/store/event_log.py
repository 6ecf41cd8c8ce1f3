"""The log of a run: a line of JSON for each thing that happened, for people to read; nothing depends on it.

Each rank has its own, because not every disk that machines share lets several of them add to one file. In an object
store it is a directory, to which every process adds (see storage.journal).
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
    """Where people find it."""
    return folder.path(LOG.partition(".")[0] if folder.is_remote else _name(rank))


def line(event: str, **fields: Any) -> bytes:
    """What happened, when, and to what."""
    return msgspec.json.encode({"time": round(time.time(), 3), "event": event, **fields}) + b"\n"


def append(folder: Folder, lines: list[bytes], rank: int | None = None) -> None:
    """Add lines."""
    folder.append(LOG if folder.is_remote else _name(rank), b"".join(lines))


def last_line(folder: Folder, rank: int | None = None) -> bytes:
    """The last line of a log on a disk; empty if there is none, or it is no line."""
    try:
        size = folder.size(_name(rank))
        tail = folder.read_at(_name(rank), max(size - TAIL_BYTES, 0), min(size, TAIL_BYTES))
    except TokenmillError:
        return b""
    return tail.rstrip(b"\n").rpartition(b"\n")[2]


def _name(rank: int | None) -> str:
    return LOG if rank is None else LOG.replace(".", f"-{rank}.")
