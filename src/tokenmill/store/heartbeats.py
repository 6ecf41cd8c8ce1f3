"""What each process that works on a run tells of itself, every few seconds, in a small file of its own.

Nothing depends on it but what people are shown. Whoever has not been heard of for a while is taken to be gone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated

import msgspec

from tokenmill.errors import TokenmillError
from tokenmill.storage import prefetch_map
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import layout

if TYPE_CHECKING:
    from tokenmill.storage import Folder

LOCAL_SECONDS = 2.0
REMOTE_SECONDS = 10.0
"""How often it is told, on a disk and over a network."""

GRACE_SECONDS = 20.0
"""How much later than that it may come before its writer is taken to be gone; clocks differ by less."""

MAX_READ = 4096
MAX_ENDED = 16
"""How many drivers that are no longer at work keep their file; older ones are removed by the next driver."""

MAX_HEARTBEAT_BYTES = 1 << 20
READ_PER_BATCH = 16

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
Number = Annotated[float, msgspec.Meta(ge=0, le=1e15)]


class EndRecord(msgspec.Struct, frozen=True):
    """How a process ended its work: complete, failed, interrupted or killed; the error, and the exit code if known."""

    outcome: str
    kind: str = ""
    headline: str = ""
    exit_code: int | None = 0


class HeartbeatRecord(msgspec.Struct, frozen=True):
    """A process, its workers, their nodes, and what came of them since it was started. Rates: of the last minute."""

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
    nodes: tuple[str, ...] = ()
    units: Count = 0
    tokens: Count = 0
    text_bytes: Count = 0
    deaths: Count = 0
    retries: Count = 0
    failures: Count = 0
    bytes_per_second: Number = 0.0
    tokens_per_second: Number = 0.0
    units_done: Count | None = None  # of the whole store, by any driver, as far as this one knows
    planned_bytes_done: Count | None = None

    @property
    def is_alive(self) -> bool:
        """Whether it was at work a moment ago."""
        return not self.ended and time.time() - self.time < 3 * self.every_seconds + GRACE_SECONDS

    @property
    def done(self) -> tuple[int, int] | None:
        """Units that have a part, and the bytes planned for them; None if its driver does not tell."""
        if self.units_done is None or self.planned_bytes_done is None:
            return None
        return self.units_done, self.planned_bytes_done


def interval_seconds(folder: Folder) -> float:
    """How often a pulse is published there."""
    return REMOTE_SECONDS if folder.is_remote else LOCAL_SECONDS


def publish(folder: Folder, pulse: HeartbeatRecord) -> None:
    """Tell of this process; what it told before is gone."""
    with folder.publish(f"{layout.DRIVERS}/{pulse.driver}.json", durable=False) as file:
        file.write(msgspec.json.encode(pulse))


def read(folder: Folder, known: Mapping[str, HeartbeatRecord] | None = None) -> dict[str, HeartbeatRecord]:
    """The last pulse of each driver by its name, in order; names begin with the time when the driver was started.

    A driver that is `known` to be at work no more is not read again.
    """
    names = _names(folder)[-MAX_READ:]
    over = {name: pulse for name, pulse in (known or {}).items() if not pulse.is_alive}
    fresh = [name for name in names if name not in over]
    found = dict(zip(fresh, prefetch_map(folder, partial(_read, folder), fresh, READ_PER_BATCH), strict=True))
    pulses = {name: over.get(name) or found.get(name) for name in names}
    return {name: pulse for name, pulse in pulses.items() if pulse is not None}


def prune(folder: Folder) -> int:
    """Remove the files of drivers that are no longer at work, but for the last ones; how many there were."""
    old = _names(folder)[:-MAX_ENDED][:MAX_READ]
    pulses = prefetch_map(folder, partial(_read, folder), old, READ_PER_BATCH)
    over = [name for name, pulse in zip(old, pulses, strict=True) if pulse is None or not pulse.is_alive]
    for name in over:
        folder.discard(f"{layout.DRIVERS}/{name}")
    return len(over)


def _names(folder: Folder) -> list[str]:
    return sorted(name for name in folder.names(layout.DRIVERS) if name.endswith(".json"))


def _read(folder: Folder, name: str) -> HeartbeatRecord | None:
    """One of them; None if it is none, or has just gone."""
    try:
        return decode(folder.read(f"{layout.DRIVERS}/{name}", MAX_HEARTBEAT_BYTES), HeartbeatRecord)
    except (MalformedDataError, TokenmillError):
        return None
