"""What happens in a run, told three times: to whoever watches, in the run's log, and in figures for the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from tokenmill.executors.messages import fewer_workers
from tokenmill.executors.outcomes import Cause
from tokenmill.executors.progress import Reporter, Step
from tokenmill.pipeline.messages import describe_position, describe_unit_death, row_name, span
from tokenmill.store import event_log

if TYPE_CHECKING:
    from tokenmill.executors.outcomes import Died, Done, Failed, Worker
    from tokenmill.pipeline.commit import Committed
    from tokenmill.pipeline.isolate import ExcludedRow
    from tokenmill.pipeline.plan import UnitTask
    from tokenmill.storage import Folder


LOG_SECONDS = 0.1
MAX_SAID = 100
"""How many troubles are told to whoever watches; the log has all of them."""


@dataclass
class RunEvents:
    """Told of everything that becomes of units. `workers` are at work; `crew` tells of them where they change."""

    folder: Folder
    report: Reporter
    workers: int
    rank: int | None = None
    step: Step = field(default_factory=Step)
    notices: list[str] = field(default_factory=list)
    peak_worker_bytes: int = 0
    retries: int = 0
    failures: int = 0
    crew: Callable[[], str] = str
    _lines: list[bytes] = field(default_factory=list)
    _logged: float = 0.0
    _said: int = 0
    _loss: str = ""

    @property
    def log_path(self) -> str:
        """Where all of it is."""
        return event_log.path(self.folder, self.rank)

    def log(self, event: str, **fields: object) -> None:
        """Add a line to the run's log; those of units wait for a moment, as there may be thousands of them."""
        self._lines.append(event_log.line(event, **fields))
        if event != "unit" or time.monotonic() - self._logged > LOG_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write the lines that wait."""
        self._logged = time.monotonic()
        if self._lines:
            lines, self._lines = self._lines, []
            event_log.append(self.folder, lines, self.rank)

    def committed(self, task: UnitTask, committed: Committed, done: Done[Any, Any]) -> None:
        """A unit has its part. One that was found is not this call's work."""
        summary, worker = committed.summary, done.worker
        if committed.found:
            self.report.advance(task.text_bytes, self.step)
            return
        self.log(
            "unit",
            unit=task.unit,
            tokens=summary.tokens,
            text_bytes=summary.text_bytes,
            seconds=round(done.seconds, 3),
            pid=worker.pid,
            peak_bytes=worker.peak_bytes,
            **_node(worker),
        )
        self.peak_worker_bytes = max(self.peak_worker_bytes, worker.peak_bytes)
        before = self.step
        self.step = Step(
            text_bytes=before.text_bytes + summary.text_bytes,
            tokens=before.tokens + summary.tokens,
            units=before.units + 1,
            deaths=before.deaths,
            bad=before.bad + summary.quarantined_rows,
            workers_text=self.crew(),
        )
        self.report.advance(task.text_bytes, self.step)
        for notice in committed.notices:
            self.warn(notice)

    def failed(self, task: UnitTask, failure: Failed[Any], then: str) -> None:
        """A unit ended in an error. One that explains itself is told at the end."""
        self.failures += 1
        self.log("failure", unit=task.unit, kind=failure.kind, message=failure.message, traceback=failure.traceback)
        if not failure.explained:
            what = f"{failure.kind} ({failure.message.partition(chr(10))[0]})"
            self._say(f"unit {task.unit} ({span(task)}) raised {what}{describe_position(task, failure)}; {then}")

    def died(self, task: UnitTask, death: Died[Any], then: str) -> None:
        """A unit cost its worker's life."""
        self.log(
            "death",
            unit=task.unit,
            file=task.files[0].path,
            place=death.note.decode(errors="replace"),
            pid=death.worker.pid,
            **_node(death.worker),
            cause=death.end.cause.value,
            how=death.how,
            exit_code=death.exit_code,
            peak_bytes=death.worker.peak_bytes,
            attempt=death.attempt,
            last_words=death.output_tail,
        )
        self.peak_worker_bytes = max(self.peak_worker_bytes, death.worker.peak_bytes)
        self.retries += not death.final
        self.step = replace(self.step, deaths=self.step.deaths + 1, workers_text=self.crew())
        self.report.advance(0, self.step)
        self._say_death(task, death, then)
        if death.end.cause is Cause.MEMORY and death.workers < self.workers:
            self.workers = death.workers
            self.warn(fewer_workers(self.workers))

    def _say_death(self, task: UnitTask, death: Died[Any], then: str) -> None:
        """Who died, and how; of a node that was lost, once for all that it had."""
        if death.end.cause is not Cause.NODE_LOST or death.final:
            self._say(f"{describe_unit_death(task, death)}; {then}")
            return
        loss = f"node {death.worker.node}: what it had is given to others: {death.end.detail}"
        if loss != self._loss:
            self._loss = loss
            self._say(loss)

    def left_out(self, task: UnitTask, verdict: ExcludedRow) -> None:
        """A document goes into quarantine."""
        file, row = task.file(verdict.where.source), verdict.where.row
        self.log("quarantine", unit=task.unit, file=file.path, row=row, reason=verdict.reason)
        self._say(f"in quarantine: {row_name(file, row)} of {file.path}, which {verdict.reason}")

    def _say(self, trouble: str) -> None:
        self._said += 1
        if self._said <= MAX_SAID:
            self.report.say(trouble)
        elif self._said == MAX_SAID + 1:
            self.report.say(f"and so on: {self.log_path} has the rest")

    def warn(self, notice: str) -> None:
        """Show a notice, log it, and keep it for the result; once."""
        if notice not in self.notices:
            self.notices.append(notice)
            self.log("notice", message=notice)
            self.report.say(f"note: {notice}")


def _node(worker: Worker) -> dict[str, str]:
    """Where a worker is, if that is not here."""
    return {"node": worker.node} if worker.node else {}
