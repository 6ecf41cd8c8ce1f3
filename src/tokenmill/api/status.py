"""How far a run is, read from its directory alone: also while it goes on in another process or on another machine."""

from __future__ import annotations

import functools

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.exports import records
from tokenmill.exports.job import MANIFEST, PLAN, exports_in
from tokenmill.exports.shards import SCHEMA
from tokenmill.storage import Folder, folder_at
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import event_log, heartbeats, layout

KILLED = heartbeats.EndRecord(
    "killed", headline="no end is recorded: it was killed, or its machine was lost", exit_code=None
)


class _LastEvent(msgspec.Struct):
    """What is read of the last line of a log."""

    event: str
    outcome: str = ""
    kind: str = ""
    headline: str = ""
    exit_code: int | None = None


LOCAL_SECONDS = 1.0
REMOTE_SECONDS = 5.0
"""How long to wait between two looks: drivers in a bucket publish every ten seconds."""


class StatusResult(msgspec.Struct, frozen=True):
    """A run's state. `process` is the one that writes to the store now, if any, or its machine.

    Drivers are the processes that give out work; rates, retries, deaths and failures are of those that are at work now,
    or of the last one that was, since they were started. `end` is how that one ended, if the run is stopped.
    """

    directory: str
    state: str
    process: int | str | None
    tokenizer: str
    begin_token: int | None
    end_token: int | None
    sources: int
    units: int
    limit_units: int | None
    units_done: int
    planned_bytes: int
    planned_bytes_done: int
    tokens: int | None
    documents: int | None
    skipped_rows: int | None
    quarantined: int | None
    bytes_per_second: float | None
    tokens_per_second: float | None
    seconds_left: float | None
    drivers: int
    nodes: int
    workers: int
    retries: int
    deaths: int
    failures: int
    exports: dict[str, str]
    end: heartbeats.EndRecord | None = None


class StatusWatch:
    """A run that is looked at again and again: what cannot change is read once.

    In a bucket, while drivers are at work, a look takes one listing of `drivers/` and the object of each of them.
    """

    def __init__(self, directory: str) -> None:
        self.folder = folder_at(directory)
        self.run = layout.require_run(self.folder)
        self.seconds = REMOTE_SECONDS if self.folder.is_remote else LOCAL_SECONDS
        self._pulses: dict[str, heartbeats.HeartbeatRecord] = {}
        self._exports: dict[str, str] | None = None
        self._done: tuple[int, int] | None = None

    def look(self) -> StatusResult:
        """The state of the run now."""
        return _status(self)

    @functools.cached_property
    def text_bytes(self) -> npt.NDArray[np.int64]:
        """How much text each unit has, by the plan."""
        return layout.read_planned_bytes(self.folder, self.run)

    def pulses(self) -> list[heartbeats.HeartbeatRecord]:
        """What the drivers have published last."""
        self._pulses = heartbeats.read(self.folder, self._pulses)
        return list(self._pulses.values())

    def is_complete(self, *, at_work: bool) -> bool:
        """Whether the manifest is there. While drivers publish pulses from a bucket, that is asked once."""
        if self._exports is not None and self.folder.is_remote and at_work:
            return False
        return self.folder.exists(layout.MANIFEST) and not layout.is_suspect(self.folder, self.run)

    def done(self, at_work: list[heartbeats.HeartbeatRecord]) -> tuple[int, int]:
        """Units that have a part, and the bytes planned for them.

        In a bucket, drivers at work tell both. The first look lists the parts as well: the drivers' numbers are some
        seconds old.
        """
        told = [each.done for each in at_work if self.folder.is_remote and each.done is not None]
        if not told:
            committed = layout.committed_units(self.folder, self.run.units)
            every = bool(committed.all())
            return int(committed.sum()), self.run.text_bytes if every else int(self.text_bytes[committed].sum())
        units, size = max(told)
        if self._done is None:
            listed = int(layout.committed_units(self.folder, self.run.units).sum())
            self._done = listed, size + self._planned(listed - units, units, size)
        self._done = max(self._done, (units, size))
        return self._done

    def _planned(self, more: int, units: int, size: int) -> int:
        """About how many bytes were planned for some more units, of those that were left."""
        return max(more, 0) * (self.run.text_bytes - size) // max(self.run.units - units, 1)

    def exports(self, *, running: bool) -> dict[str, str]:
        """The exports inside the store and their states; they do not change while a run is at work in a bucket."""
        if self._exports is None or not (running and self.folder.is_remote):
            names = exports_in(self.folder)
            self._exports = {name: _export_state(folder_at(self.folder.path(name))) for name in names}
        return self._exports


def status(directory: str) -> StatusResult:
    """Look at a run without disturbing it."""
    return StatusWatch(directory).look()


def _status(watch: StatusWatch) -> StatusResult:
    folder, run = watch.folder, watch.run
    pulses = watch.pulses()
    complete = watch.is_complete(at_work=any(each.is_alive for each in pulses))
    holder = folder.lock_holder(layout.LOCK)
    anybody = holder is not None or folder.is_remote  # a disk that nobody holds has ranks at work, if anybody
    at_work = [] if complete else [each for each in pulses if each.is_alive and (anybody or each.of)]
    units_done, done = watch.done(at_work)
    totals = _totals(folder, run) if complete else {}
    running = not complete and bool(holder or at_work)
    rate = sum(each.bytes_per_second for each in at_work) if running else None
    latest = at_work or pulses[-1:]
    return StatusResult(
        directory=folder.root,
        state=_state(complete=complete, whole=units_done == run.units, running=running),
        process=_process(holder, at_work) if running else None,
        tokenizer=run.job.tokenizer.name,
        begin_token=run.job.begin,
        end_token=run.job.end,
        sources=run.sources,
        units=run.units,
        limit_units=run.job.limit_units,
        units_done=units_done,
        planned_bytes=run.text_bytes,
        planned_bytes_done=done,
        tokens=totals.get("tokens"),
        documents=totals.get("documents"),
        skipped_rows=totals.get("skipped"),
        quarantined=totals.get("quarantined"),
        bytes_per_second=rate,
        tokens_per_second=sum(each.tokens_per_second for each in at_work) if running else None,
        seconds_left=(run.text_bytes - done) / rate if rate else None,
        drivers=len(at_work),
        nodes=len({node for each in at_work for node in each.nodes}),
        workers=sum(each.workers for each in at_work),
        retries=sum(each.retries for each in latest),
        deaths=sum(each.deaths for each in latest),
        failures=sum(each.failures for each in latest),
        exports=watch.exports(running=running),
        end=None if complete or running else _end(folder, pulses),
    )


def _end(folder: Folder, pulses: list[heartbeats.HeartbeatRecord]) -> heartbeats.EndRecord | None:
    """How the process ended that was last at work. A full disk has no room for its last pulse, but for a line."""
    if not pulses:
        return None
    last = max(pulses, key=lambda each: each.time)
    if last.end is not None:
        return last.end
    try:
        line = decode(event_log.last_line(folder, last.rank), _LastEvent)
    except MalformedDataError:
        return KILLED
    return (
        heartbeats.EndRecord(line.outcome, line.kind, line.headline, line.exit_code) if line.event == "end" else KILLED
    )


def _state(*, complete: bool, whole: bool, running: bool) -> str:
    """`damaged` is a store with a manifest that lists parts which are gone: `prepare` makes them again."""
    if complete:
        return "complete" if whole else "damaged"
    return "running" if running else "stopped"


def _process(holder: str | None, at_work: list[heartbeats.HeartbeatRecord]) -> int | str | None:
    """The process that holds the store, or the machines that work on it."""
    if holder is not None:
        return int(holder) if holder.isdigit() else holder
    return ", ".join(sorted({each.host for each in at_work})) or None


def _export_state(export: Folder) -> str:
    if export.exists(MANIFEST):
        return "complete"
    if not export.exists(PLAN):
        return "not planned yet"
    shards = len(layout.read_table(export, PLAN, schema=SCHEMA))
    return f"{records.committed(export, shards).sum():,} of {shards:,} shards"


def _totals(folder: Folder, run: layout.Run) -> dict[str, int]:
    manifest = layout.require_manifest(folder, run)
    return {name: int(np.sum(manifest[name].to_numpy())) for name in ("documents", "tokens", "skipped", "quarantined")}
