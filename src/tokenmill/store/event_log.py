"""The event log of a run: one line of JSON per event.

People read it, and a resumed run: a part is taken as made by this run if the log records its checksum. A part that is
not recorded is compared with the text of its sources first. So no result depends on the log, only the time of a resume.

Each rank has its own log, because not every shared disk lets several machines append to one file. In an object store
the log is a directory to which every process adds objects (see storage.journal).

The logger `tokenmill` of Python gets the same events. It has no handler, so nothing is printed unless a program asks.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.errors import StoreError, TokenmillError
from tokenmill.storage import Folder
from tokenmill.store.layout import LOG

TAIL_BYTES = 1 << 16
MAX_LINE_BYTES = 1 << 20
MAX_LOG_BYTES = 2 << 30
# Hex digits of a part's checksum that the log records.
CHECKSUM_DIGITS = 16

LOGGER = logging.getLogger("tokenmill")
LOGGER.addHandler(logging.NullHandler())
# The levels of events. Others are about deaths, failures, bad documents and notices: warnings.
LEVELS = {"unit": logging.DEBUG, "start": logging.INFO, "complete": logging.INFO, "end": logging.INFO}

Checksums = npt.NDArray[np.uint64]


class _CommittedLine(msgspec.Struct):
    """What is read of a line: which part a unit got, and when."""

    time: float = 0.0
    event: str = ""
    unit: int = -1
    part: str = ""
    run: str = ""


def path(folder: Folder, rank: int | None = None) -> str:
    """The path of the log, for messages."""
    return folder.path(LOG.partition(".")[0] if folder.is_remote else _name(rank))


def line(event: str, **fields: Any) -> bytes:
    """Encode an event with the current time. Python's logger gets it, too: `record.event` and `record.fields`."""
    level = logging.ERROR if fields.get("outcome") == "failed" else LEVELS.get(event, logging.WARNING)
    if LOGGER.isEnabledFor(level):
        text = " ".join(f"{name}={value}" for name, value in fields.items())
        LOGGER.log(level, "%s %s", event, text, extra={"event": event, "fields": fields})
    return msgspec.json.encode({"time": round(time.time(), 3), "event": event, **fields}) + b"\n"


def append(folder: Folder, lines: list[bytes], rank: int | None = None) -> None:
    """Append lines to the log."""
    folder.append(LOG if folder.is_remote else _name(rank), b"".join(lines))


def last_line(folder: Folder, rank: int | None = None) -> bytes:
    """The last line of a log on a disk; empty if the log is missing or unreadable."""
    try:
        size = folder.size(_name(rank))
        tail = folder.ranges.read_at(_name(rank), max(size - TAIL_BYTES, 0), min(size, TAIL_BYTES))
    except TokenmillError:
        return b""
    return tail.rstrip(b"\n").rpartition(b"\n")[2]


def names(folder: Folder) -> list[str]:
    """The names of the logs: one for each rank, or the files of a remote log in the order of time."""
    stem = LOG.partition(".")[0]
    if folder.is_remote:
        return sorted(f"{stem}/{name}" for name in folder.names(stem) if name.endswith(".jsonl"))
    return sorted(name for name in folder.names(".") if re.fullmatch(rf"{stem}(-[0-9]{{1,9}})?\.jsonl", name))


def lines(folder: Folder, name: str) -> Iterator[bytes]:
    """The lines of a log. A line that is too long is yielded empty, and what exceeds MAX_LOG_BYTES is not read."""
    rest = b""
    for data in folder.ranges.chunks(name, 0, min(folder.size(name), MAX_LOG_BYTES)):
        *whole, rest = (rest + data).split(b"\n")
        yield from (line for line in whole if line.strip())
        if len(rest) > MAX_LINE_BYTES:
            yield b""
            rest = b""
    if rest.strip():
        yield rest


def checksum_prefix(blake3: str) -> int:
    """The start of a part's checksum, as the log records it."""
    return int(blake3[:CHECKSUM_DIGITS], 16)


def recorded_parts(folder: Folder, units: int, run: str) -> Checksums:
    """For each unit, the checksum prefix of the part that the logs of this run recorded last; 0 if they record none.

    `run` is the identity of the run in its log (`tables.log_run`): the log of an earlier run on other sources may have
    been put back.
    """
    parts, times = np.zeros(units, np.uint64), np.zeros(units)
    for name in names(folder):
        try:
            for data in lines(folder, name):
                _record(data, parts, times, run)
        except StoreError:  # not a regular file, or gone: its parts count as not recorded
            continue
    return parts


def _record(data: bytes, parts: Checksums, times: npt.NDArray[np.float64], run: str) -> None:
    if b'"part"' not in data:
        return
    try:
        entry = msgspec.json.decode(data, type=_CommittedLine)
        prefix = checksum_prefix(entry.part)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return
    is_ours = entry.event == "unit" and entry.run == run and 0 <= entry.unit < len(parts)
    if is_ours and entry.time >= times[entry.unit] and prefix < 1 << 64:
        parts[entry.unit], times[entry.unit] = prefix, entry.time


def _name(rank: int | None) -> str:
    return LOG if rank is None else LOG.replace(".", f"-{rank}.")
