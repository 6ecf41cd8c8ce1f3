"""Records run events: shows them to the user, appends them to the run log, and keeps totals for the result."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import Any

from tokenmill.executors.messages import fewer_workers
from tokenmill.executors.outcomes import Cause, Died, Done, Failed, Worker
from tokenmill.executors.progress import Reporter, Step
from tokenmill.pipeline.unit.commit import Committed
from tokenmill.pipeline.unit.isolate import ExcludedRow
from tokenmill.pipeline.unit.messages import describe_position, describe_unit_death, row_name, span
from tokenmill.pipeline.unit.plan import UnitTask
from tokenmill.storage import Folder
from tokenmill.store import event_log
from tokenmill.store.part import FILTERED

# Log lines of units are written together at most this often: there may be thousands in a second.
LOG_SECONDS = 0.1

# How many deaths, failures and excluded rows are shown to the user; the log has all of them.
MAX_SHOWN = 100


@dataclass
class RunLog:
    """Appends lines to the log of this driver. `run` is the identity of the run (`tables.log_run`)."""

    folder: Folder
    run: str
    rank: int | None = None
    _lines: list[bytes] = field(default_factory=list)
    _written_at: float = 0.0

    @property
    def path(self) -> str:
        """The path of the log."""
        return event_log.path(self.folder, self.rank)

    def add(self, event: str, **fields: object) -> None:
        """Append a line; one about a unit may wait for the next line."""
        self._lines.append(event_log.line(event, **fields))
        if event != "unit" or time.monotonic() - self._written_at > LOG_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the lines that wait."""
        self._written_at = time.monotonic()
        if self._lines:
            lines, self._lines = self._lines, []
            event_log.append(self.folder, lines, self.rank)


@dataclass
class RunEvents:
    """Receives one call per unit outcome."""

    log: RunLog
    report: Reporter
    workers: int
    step: Step = field(default_factory=Step)
    notices: list[str] = field(default_factory=list)
    peak_worker_bytes: int = 0
    retries: int = 0
    failures: int = 0
    unread_groups: int = 0
    _shown: int = 0
    _lost_node: str = ""

    def committed(self, task: UnitTask, committed: Committed, done: Done[Any, Any]) -> None:
        """A unit has its part. A part that another driver made counts as progress, not as work of this call."""
        if not committed.by_other_driver:
            self.record(task, committed, done)
        self.report.advance(task.text_bytes, self.step)

    def record(self, task: UnitTask, committed: Committed, done: Done[Any, Any]) -> None:
        """A worker of this call has made the part of a unit."""
        summary, worker = committed.summary, done.worker
        self.log.add(
            "unit",
            unit=task.unit,
            run=self.log.run,
            part=summary.blake3[: event_log.CHECKSUM_DIGITS],
            tokens=summary.tokens,
            text_bytes=summary.text_bytes,
            seconds=round(done.seconds, 3),
            pid=worker.pid,
            peak_bytes=worker.peak_bytes,
            **_node(worker),
            **_filtered(committed),
        )
        self.peak_worker_bytes = max(self.peak_worker_bytes, worker.peak_bytes)
        self.unread_groups += committed.unread_groups
        before = self.step
        self.step = replace(
            before,
            text_bytes=before.text_bytes + summary.text_bytes,
            tokens=before.tokens + summary.tokens,
            units=before.units + 1,
            bad=before.bad + summary.quarantined_rows,
        )
        for notice in committed.notices:
            self.warn(notice)

    def failed(self, task: UnitTask, failure: Failed[Any], next_step: str) -> None:
        """A unit raised an error. An explained error is shown when the run ends."""
        self.failures += 1
        self.log.add("failure", unit=task.unit, kind=failure.kind, message=failure.message, traceback=failure.traceback)
        if not failure.explained:
            error = f"{failure.kind} ({failure.message.partition(chr(10))[0]})"
            where = describe_position(task, failure)
            self._show(f"unit {task.unit} ({span(task)}) raised {error}{where}; {next_step}")

    def died(self, task: UnitTask, death: Died[Any], next_step: str) -> None:
        """The worker of a unit died."""
        self.log.add(
            "death",
            unit=task.unit,
            file=task.files[0].path,
            place=death.note.decode(errors="replace"),
            pid=death.worker.pid,
            **_node(death.worker),
            cause=death.end.cause.value,
            how=str(death.end),
            exit_code=death.end.exit_code,
            peak_bytes=death.worker.peak_bytes,
            attempt=death.attempt,
            last_words=death.output_tail,
        )
        self.peak_worker_bytes = max(self.peak_worker_bytes, death.worker.peak_bytes)
        self.retries += not death.final
        self.step = replace(self.step, deaths=self.step.deaths + 1)
        self.report.advance(0, self.step)
        self._show_death(task, death, next_step)
        if death.end.cause is Cause.MEMORY and death.workers < self.workers:
            self.workers = death.workers
            self.warn(fewer_workers(self.workers))

    def _show_death(self, task: UnitTask, death: Died[Any], next_step: str) -> None:
        """Show how a worker died. A lost node is shown once for all of its workers."""
        if death.end.cause is not Cause.NODE_LOST or death.final:
            self._show(f"{describe_unit_death(task, death)}; {next_step}")
            return
        loss = f"node {death.worker.node}: what it had is given to others: {death.end.detail}"
        if loss != self._lost_node:
            self._lost_node = loss
            self._show(loss)

    def excluded(self, task: UnitTask, excluded: ExcludedRow) -> None:
        """A row goes into quarantine."""
        file, row = task.file(excluded.where.source), excluded.where.row
        self.log.add("quarantine", unit=task.unit, file=file.path, row=row, reason=excluded.reason)
        self._show(f"in quarantine: {row_name(file, row)} of {file.path}, which {excluded.reason}")

    def _show(self, message: str) -> None:
        self._shown += 1
        if self._shown <= MAX_SHOWN:
            self.report.say(message)
        elif self._shown == MAX_SHOWN + 1:
            self.report.say(f"and so on: {self.log.path} has the rest")

    def warn(self, notice: str) -> None:
        """Show a notice, log it and keep it for the result. A repeated notice is ignored."""
        if notice not in self.notices:
            self.notices.append(notice)
            self.log.add("notice", message=notice)
            self.report.say(f"note: {notice}")


def _filtered(committed: Committed) -> dict[str, int]:
    """The log fields for rows and row groups that a filter has skipped."""
    rows = sum(skipped.rows for skipped in committed.summary.skipped if skipped.reason == FILTERED)
    return {"filtered_rows": rows, "unread_row_groups": committed.unread_groups} if rows else {}


def _node(worker: Worker) -> dict[str, str]:
    """The log field for a worker on another node."""
    return {"node": worker.node} if worker.node else {}
