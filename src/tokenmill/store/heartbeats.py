"""Heartbeats: each driver of a run publishes its state every few seconds in a small file of its own.

They are only shown to people; no result depends on them. A driver whose heartbeat is overdue counts as dead. The last
heartbeat, or the last line of the log, says how the driver ended, and so what finishes the run.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Annotated

import msgspec

from tokenmill.errors import INTERRUPTED, TRY_AGAIN, TokenmillError
from tokenmill.humanize import Readable
from tokenmill.storage import Folder, prefetch_map
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import event_log, layout

LOCAL_SECONDS = 2.0
"""The interval on a disk."""

REMOTE_SECONDS = 10.0
"""The interval in an object store."""

GRACE_SECONDS = 20.0
"""The grace period for an overdue heartbeat. The clocks of the machines must differ by less."""

MAX_READ = 4096
"""The maximum number of heartbeats that are read."""

MAX_ENDED = 16
"""The number of latest heartbeats that are kept. The next driver removes older ones of dead drivers."""

MAX_HEARTBEAT_BYTES = 1 << 20
READ_PER_BATCH = 16

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Number = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class EndRecord(Readable, msgspec.Struct, frozen=True):
    """How a driver ended: complete, failed, interrupted or killed; the error, and the exit code if known.

    `advice` is what helps, if the error says it.
    """

    outcome: str
    kind: str = ""
    headline: str = ""
    exit_code: int | None = 0
    advice: tuple[str, ...] = ()


class HeartbeatRecord(msgspec.Struct, frozen=True):
    """The state of a driver. Counts are since its start; rates are of the last minute.

    `waiting` workers wait because the object store refuses requests.
    """

    driver: str
    host: str
    process: Count
    started: Number
    time: Number
    every_seconds: Number
    ended: bool = False
    end: EndRecord | None = None
    rank: Count | None = None
    of: Count | None = None
    workers: Count = 0
    waiting: Count = 0
    nodes: tuple[str, ...] = ()
    units: Count = 0
    tokens: Count = 0
    text_bytes: Count = 0
    deaths: Count = 0
    retries: Count = 0
    failures: Count = 0
    bytes_per_second: Number = 0.0
    tokens_per_second: Number = 0.0
    units_done: Count | None = None  # of the whole store, by all drivers, as far as this driver knows
    planned_bytes_done: Count | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the driver has not ended and its heartbeat is not overdue."""
        return not self.ended and time.time() - self.time < 3 * self.every_seconds + GRACE_SECONDS

    @property
    def done(self) -> tuple[int, int] | None:
        """Units that have a part, and the bytes planned for them; None if the driver does not publish them."""
        if self.units_done is None or self.planned_bytes_done is None:
            return None
        return self.units_done, self.planned_bytes_done


def interval_seconds(folder: Folder) -> float:
    """The interval between heartbeats in this directory."""
    return REMOTE_SECONDS if folder.is_remote else LOCAL_SECONDS


def publish(folder: Folder, beat: HeartbeatRecord) -> None:
    """Publish the heartbeat of this driver in place of the previous one."""
    with folder.publish(f"{layout.DRIVERS}/{beat.driver}.json", durable=False) as file:
        file.write(msgspec.json.encode(beat))


def read(folder: Folder, previous: Mapping[str, HeartbeatRecord] | None = None) -> dict[str, HeartbeatRecord]:
    """Read the last heartbeat of each driver, by file name, in the order of the drivers' start times.

    The heartbeat of a driver that was dead in `previous` is not read again.
    """
    names = _names(folder)[-MAX_READ:]
    dead = {name: beat for name, beat in (previous or {}).items() if not beat.is_alive}
    fresh = [name for name in names if name not in dead]
    read_now = dict(zip(fresh, prefetch_map(folder, partial(_read, folder), fresh, READ_PER_BATCH), strict=True))
    beats = {name: dead.get(name) or read_now.get(name) for name in names}
    return {name: beat for name, beat in beats.items() if beat is not None}


def prune(folder: Folder) -> int:
    """Remove the heartbeats of dead drivers, except for the latest ones; returns their number."""
    old = _names(folder)[:-MAX_ENDED][:MAX_READ]
    beats = prefetch_map(folder, partial(_read, folder), old, READ_PER_BATCH)
    dead = [name for name, beat in zip(old, beats, strict=True) if beat is None or not beat.is_alive]
    for name in dead:
        folder.discard(f"{layout.DRIVERS}/{name}")
    return len(dead)


def _names(folder: Folder) -> list[str]:
    return sorted(name for name in folder.names(layout.DRIVERS) if name.endswith(".json"))


def _read(folder: Folder, name: str) -> HeartbeatRecord | None:
    """Read a heartbeat; None if it is malformed or was just removed."""
    try:
        return decode(folder.read(f"{layout.DRIVERS}/{name}", MAX_HEARTBEAT_BYTES), HeartbeatRecord)
    except (MalformedDataError, TokenmillError):
        return None


KILLED = EndRecord("killed", headline="no end is recorded: it was killed, or its machine was lost", exit_code=None)

RUN_AGAIN = "Run the same `tokenmill prepare` again to finish it."
REMOVE_CAUSE = "Remove the cause, then run the same `tokenmill prepare` again to finish it."


class _LastEvent(msgspec.Struct):
    """The fields of the last line of a log."""

    event: str
    outcome: str = ""
    kind: str = ""
    headline: str = ""
    exit_code: int | None = None
    advice: tuple[str, ...] = ()


def last_end(folder: Folder, beats: Sequence[HeartbeatRecord]) -> EndRecord | None:
    """How the last driver ended. A full disk may have room for its last log line, but not for its last heartbeat."""
    if not beats:
        return None
    last = max(beats, key=lambda beat: beat.time)
    if last.end is not None:
        return last.end
    try:
        line = decode(event_log.last_line(folder, last.rank), _LastEvent)
    except MalformedDataError:
        return KILLED
    if line.event != "end":
        return KILLED
    return EndRecord(line.outcome, line.kind, line.headline, line.exit_code, line.advice)


def is_failure(end: EndRecord | None) -> bool:
    """Whether the same command would fail again."""
    return end is not None and bool(end.exit_code) and end.exit_code not in (TRY_AGAIN, INTERRUPTED)


def next_step(end: EndRecord | None) -> tuple[str, ...]:
    """What finishes a run that is stopped."""
    if end is None or not is_failure(end):
        return (RUN_AGAIN,)
    return end.advice or (REMOVE_CAUSE,)
