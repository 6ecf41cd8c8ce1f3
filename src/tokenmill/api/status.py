"""`status`: how far a run is, read from its directory alone."""

from __future__ import annotations

import os

import msgspec

from tokenmill.exports.records import export_states
from tokenmill.humanize import Readable
from tokenmill.options import StrPath
from tokenmill.storage import folder_at
from tokenmill.store.heartbeats import EndRecord, next_step
from tokenmill.store.manifest import manifest_totals
from tokenmill.store.run_state import RunWatcher
from tokenmill.store.state import Operation, enter
from tokenmill.system.arguments import checked

LOCAL_SECONDS = 1.0
# Drivers publish to a bucket only every ten seconds.
REMOTE_SECONDS = 5.0


class StatusResult(Readable, msgspec.Struct, frozen=True):
    """A run's state. `process` is the one that writes to the store now, if any, or its machine.

    Drivers are the processes that give out work; rates, retries, deaths and failures are of those that are at work now,
    or of the last one that was, since they were started. `end` is how that one ended, if the run is stopped, and `next`
    what finishes the run then.
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
    retries: int
    deaths: int
    failures: int
    exports: dict[str, str]
    end: EndRecord | None = None
    next: tuple[str, ...] = ()


@checked
def status(directory: StrPath) -> StatusResult:
    """The state of a run, read from its directory. The run is not disturbed.

    Args:
        directory: The store: a path, or an address such as `s3://bucket/run`.
    """
    return StatusWatch(os.fspath(directory)).read()


class StatusWatch:
    """A run whose status is read every `interval_seconds`."""

    def __init__(self, directory: str) -> None:
        folder = folder_at(directory)
        self.interval_seconds = REMOTE_SECONDS if folder.is_remote else LOCAL_SECONDS
        self._watcher = RunWatcher(folder, enter(folder, Operation.STATUS).run)
        self._exports: dict[str, str] | None = None

    def read(self) -> StatusResult:
        """The status now."""
        folder, run = self._watcher.folder, self._watcher.run
        state = self._watcher.read()
        active, latest, is_running = state.active, state.latest, state.name == "running"
        is_complete = state.name in ("complete", "damaged")
        totals = manifest_totals(enter(folder, Operation.STATUS).manifest) if is_complete else {}
        bytes_per_second = sum(driver.bytes_per_second for driver in active) if is_running else None
        bytes_left = run.text_bytes - state.planned_bytes_done
        return StatusResult(
            directory=folder.root,
            state=state.name,
            process=state.process,
            tokenizer=run.job.tokenizer.name,
            begin_token=run.job.begin,
            end_token=run.job.end,
            sources=run.sources,
            units=run.units,
            trial=run.trial,
            units_done=state.units_done,
            planned_bytes=run.text_bytes,
            planned_bytes_done=state.planned_bytes_done,
            tokens=totals.get("tokens"),
            documents=totals.get("documents"),
            skipped_rows=totals.get("skipped"),
            quarantined=totals.get("quarantined"),
            bytes_per_second=bytes_per_second,
            tokens_per_second=sum(driver.tokens_per_second for driver in active) if is_running else None,
            seconds_left=bytes_left / bytes_per_second if bytes_per_second else None,
            drivers=len(active),
            nodes=len({node for driver in active for node in driver.nodes}),
            workers=sum(driver.workers for driver in active),
            retries=sum(driver.retries for driver in latest),
            deaths=sum(driver.deaths for driver in latest),
            failures=sum(driver.failures for driver in latest),
            exports=self._export_states(is_running),
            end=state.end,
            next=next_step(state.end) if state.name == "stopped" else (),
        )

    def _export_states(self, is_running: bool) -> dict[str, str]:
        """The states of the exports, which do not change while a run in a bucket is at work."""
        if self._exports is None or not (is_running and self._watcher.folder.is_remote):
            self._exports = export_states(self._watcher.folder)
        return self._exports
