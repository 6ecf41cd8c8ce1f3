"""`status`: how far a run is, read from its directory alone."""

from __future__ import annotations

import functools
import os

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.exports.job import exports_in, is_complete
from tokenmill.exports.records import progress_of
from tokenmill.humanize import Readable
from tokenmill.options import StrPath
from tokenmill.storage import folder_at
from tokenmill.store import heartbeats, layout, tables
from tokenmill.store.heartbeats import EndRecord, HeartbeatRecord, last_end, next_step
from tokenmill.store.source_store import source_note
from tokenmill.store.state import Operation, enter, is_suspect
from tokenmill.store.tables import manifest_totals
from tokenmill.system.arguments import checked

LOCAL_SECONDS = 1.0
# Drivers publish to a bucket only every ten seconds.
REMOTE_SECONDS = 5.0


class StatusResult(Readable, msgspec.Struct, frozen=True):
    """A run's state. `process` is the one that writes to the store now, if any, or its machine.

    Drivers are the processes that give out work; rates, retries, deaths and failures are of those that are at work now,
    or of the last one that was, since they were started. `waiting` workers wait because the object store answers that
    there are too many requests. `end` is how the last driver ended, if the run is stopped, and `next` what finishes the
    run then. `notices` are about the store that is the source.
    """

    directory: str
    state: str
    process: int | str | None
    tokenizer: str
    begin_token: int | None
    end_token: int | None
    sources: int
    units: int
    trial: str | None
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
    waiting: int
    retries: int
    deaths: int
    failures: int
    exports: dict[str, str]
    end: EndRecord | None = None
    next: tuple[str, ...] = ()
    notices: list[str] = []


@checked
def status(directory: StrPath) -> StatusResult:
    """The state of a run, read from its directory. The run is not disturbed.

    Args:
        directory: The store: a path, or an address such as `s3://bucket/run`.
    """
    return StatusWatch(os.fspath(directory)).read()


class StatusWatch:
    """A run whose status is read every `interval_seconds`. What cannot change is read only once.

    Other processes and machines may work on the run. In a bucket, while drivers are at work, a read takes one listing
    of `drivers/` and the object of each driver.
    """

    def __init__(self, directory: str) -> None:
        self._folder = folder_at(directory)
        self._run = enter(self._folder, Operation.STATUS).run
        self.interval_seconds = REMOTE_SECONDS if self._folder.is_remote else LOCAL_SECONDS
        self._heartbeats: dict[str, HeartbeatRecord] = {}
        self._done: tuple[int, int] | None = None
        self._exports: dict[str, str] | None = None  # None until the first read has ended

    def read(self) -> StatusResult:
        """The status now."""
        folder, run = self._folder, self._run
        self._heartbeats = heartbeats.read(folder, self._heartbeats)
        beats = list(self._heartbeats.values())
        alive = [beat for beat in beats if beat.is_alive]
        is_complete = self._is_complete(has_drivers=bool(alive))
        holder = folder.locks.holder(layout.LOCK)
        if holder is None and not folder.is_remote:
            alive = [beat for beat in alive if beat.of]  # on a disk, only ranks work without an exclusive lock
        active = [] if is_complete else alive
        latest = active or beats[-1:]  # the drivers at work, or else the last one
        units_done, planned_bytes_done = self._committed(active)
        is_running = not is_complete and bool(holder or active)
        if is_complete:  # a damaged store has a manifest that lists missing parts
            state = "complete" if units_done == run.units else "damaged"
        else:
            state = "running" if is_running else "stopped"
        end = last_end(folder, beats) if state == "stopped" else None
        found = enter(folder, Operation.STATUS) if is_complete else None
        totals = {} if found is None else manifest_totals(found.manifest)
        note = source_note(folder, run, found.head) if found is not None and state == "complete" else ""
        bytes_per_second = sum(driver.bytes_per_second for driver in active) if is_running else None
        return StatusResult(
            directory=folder.root,
            state=state,
            process=_process(holder, active) if is_running else None,
            tokenizer=run.job.tokenizer.name,
            begin_token=run.job.begin,
            end_token=run.job.end,
            sources=run.sources,
            units=run.units,
            trial=run.trial,
            units_done=units_done,
            planned_bytes=run.text_bytes,
            planned_bytes_done=planned_bytes_done,
            tokens=totals.get("tokens"),
            documents=totals.get("documents"),
            skipped_rows=totals.get("skipped"),
            quarantined=totals.get("quarantined"),
            bytes_per_second=bytes_per_second,
            tokens_per_second=sum(driver.tokens_per_second for driver in active) if is_running else None,
            seconds_left=(run.text_bytes - planned_bytes_done) / bytes_per_second if bytes_per_second else None,
            drivers=len(active),
            nodes=len({node for driver in active for node in driver.nodes}),
            workers=sum(driver.workers for driver in active),
            waiting=sum(driver.waiting for driver in active),
            retries=sum(driver.retries for driver in latest),
            deaths=sum(driver.deaths for driver in latest),
            failures=sum(driver.failures for driver in latest),
            exports=self._export_states(is_running),
            end=end,
            next=next_step(end) if state == "stopped" else (),
            notices=[note] if note else [],
        )

    def _is_complete(self, *, has_drivers: bool) -> bool:
        """Whether the manifest exists. In a bucket with active drivers, only the first read asks for it."""
        if self._exports is not None and self._folder.is_remote and has_drivers:
            return False
        return self._folder.exists(layout.MANIFEST) and not is_suspect(self._folder, self._run)

    def _committed(self, active: list[HeartbeatRecord]) -> tuple[int, int]:
        """The number of units that have a part, and the bytes planned for them.

        In a bucket, active drivers publish both numbers, some seconds late. The first read lists the parts, too.
        """
        published = [beat.done for beat in active if self._folder.is_remote and beat.done is not None]
        if not published:
            committed = layout.committed_units(self._folder, self._run.units)
            is_all = bool(committed.all())
            size = self._run.text_bytes if is_all else int(self._planned_bytes[committed].sum())
            return int(committed.sum()), size
        units, size = max(published)
        if self._done is None:
            listed = int(layout.committed_units(self._folder, self._run.units).sum())
            # Units that no driver has counted yet get the mean size of the rest, so that the plan is not read.
            more = max(listed - units, 0) * (self._run.text_bytes - size) // max(self._run.units - units, 1)
            self._done = listed, size + more
        self._done = max(self._done, (units, size))
        return self._done

    @functools.cached_property
    def _planned_bytes(self) -> npt.NDArray[np.int64]:
        return tables.read_planned_bytes(self._folder, self._run)

    def _export_states(self, is_running: bool) -> dict[str, str]:
        """The states of the exports by format, which do not change while a run in a bucket is at work."""
        if self._exports is None or not (is_running and self._folder.is_remote):
            found = {name: folder_at(self._folder.path(name)) for name in exports_in(self._folder)}
            self._exports = {
                name: "complete" if is_complete(export) else progress_of(export) for name, export in found.items()
            }
        return self._exports


def _process(holder: str | None, active: list[HeartbeatRecord]) -> int | str | None:
    """The process that holds the lock, or else the hosts of the active drivers."""
    if holder is not None:
        return int(holder) if holder.isdigit() else holder
    return ", ".join(sorted({beat.host for beat in active})) or None
