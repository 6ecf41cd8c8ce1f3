"""One call's work on a frozen run: give out the units that have no part, take what comes back, tell what happens."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tokenmill import layout, planning
from tokenmill.api.manifest import ManifestBuilder
from tokenmill.api.progress import Reporter, Step
from tokenmill.api.trouble import run_failed, unit_obituary
from tokenmill.executors.local import ATTEMPTS
from tokenmill.executors.outcomes import Died, Done, Executor, Failed
from tokenmill.work import Committed, Tokenize

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenmill.api.freeze import FrozenRun
    from tokenmill.api.request import Means
    from tokenmill.planning import UnitTask
    from tokenmill.storage import Folder

FAILURES_WITHOUT_SUCCESS = 10
MOST_FAILURES = 100


@dataclass
class Mill:
    """The units of a run on their way to parts."""

    folder: Folder
    frozen: FrozenRun
    engine: str
    means: Means
    report: Reporter
    step: Step = field(default_factory=Step)
    notices: list[str] = field(default_factory=list)
    failures: list[Failed[UnitTask] | Died[UnitTask]] = field(default_factory=list)
    peak_worker_bytes: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.manifest = ManifestBuilder(self.folder, self.frozen.run)
        self.committed = layout.committed_units(self.folder, self.frozen.run.units)
        self.earlier = np.flatnonzero(self.committed)

    def run(self, executor: Executor) -> None:
        """Do every unit that has no part yet; raise RunFailed if some could not be done."""
        missing = int((~self.committed).sum())
        self._log("start", units=len(self.committed), missing=missing, workers=self.means.workers, engine=self.engine)
        if not missing:
            return
        text_bytes = self.frozen.plan["text_bytes"].to_numpy()
        self.report.begin("tokenize", int(text_bytes.sum()), int(text_bytes[self.committed].sum()), self.means.workers)
        started = time.monotonic()
        engine = None
        while engine != self.engine and not self.committed.all():  # once more if an engine was given up on the way
            engine = self.engine
            self._give_out(executor, engine)
        self.seconds = time.monotonic() - started
        if self.failures:
            left, log = int((~self.committed).sum()), self.folder.path(layout.LOG)
            raise run_failed(self.failures, left, len(self.committed), log)

    def _give_out(self, executor: Executor, engine: str) -> None:
        """Give out the missing units until they are done, too many fail, or the engine is given up."""
        function = Tokenize(self.folder.root, self.frozen.run.job, engine, self.means.worker_bytes)
        for outcome in executor.run(function, self._tasks(engine)):
            if isinstance(outcome, Done):
                self._take(outcome)
                if outcome.value.engine != engine:
                    self.engine = outcome.value.engine
            elif isinstance(outcome, Died):
                self._mourn(outcome)
            else:
                self._log("failure", unit=outcome.item.unit, kind=outcome.kind, message=outcome.message)
                self.failures.append(outcome)

    def _tasks(self, engine: str) -> Iterator[UnitTask]:
        tried = [failure.item.unit for failure in self.failures]
        missing = np.setdiff1d(np.flatnonzero(~self.committed), tried)
        for task in planning.tasks(self.frozen.plan, self.frozen.sources, missing):
            if self.engine != engine or self._hopeless():
                return
            yield task

    def _hopeless(self) -> bool:
        count = len(self.failures)
        return count >= MOST_FAILURES or (count >= FAILURES_WITHOUT_SUCCESS and not self.step.units)

    def _take(self, outcome: Done[UnitTask, Committed]) -> None:
        task, committed, worker = outcome.item, outcome.value, outcome.worker
        summary = committed.summary
        self.committed[task.unit] = True
        self.manifest.add(summary)
        self._log(
            "unit",
            unit=task.unit,
            tokens=summary.tokens,
            text_bytes=summary.text_bytes,
            seconds=round(outcome.seconds, 3),
            pid=worker.pid,
            peak_bytes=worker.peak_bytes,
        )
        self.peak_worker_bytes = max(self.peak_worker_bytes, worker.peak_bytes)
        self.step = replace(
            self.step,
            text_bytes=self.step.text_bytes + summary.text_bytes,
            tokens=self.step.tokens + summary.tokens,
            units=self.step.units + 1,
        )
        self.report.advance(task.text_bytes, self.step)
        for notice in committed.notices:
            self._warn(notice)

    def _warn(self, notice: str) -> None:
        if notice not in self.notices:
            self.notices.append(notice)
            self._log("notice", message=notice)
            self.report.say(f"note: {notice}")

    def _mourn(self, death: Died[UnitTask]) -> None:
        self._log(
            "death",
            unit=death.item.unit,
            file=death.item.files[0].path,
            pid=death.worker.pid,
            how=death.how,
            exit_code=death.exit_code,
            peak_bytes=death.worker.peak_bytes,
            attempt=death.attempt,
        )
        self.peak_worker_bytes = max(self.peak_worker_bytes, death.worker.peak_bytes)
        self.step = replace(self.step, deaths=self.step.deaths + 1)
        self.report.advance(0, self.step)
        then = "the unit is given up" if death.final else f"the unit is tried again ({death.attempt + 1} of {ATTEMPTS})"
        self.report.say(f"{unit_obituary(death)}; {then}")
        if death.final:
            self.failures.append(death)

    def _log(self, event: str, **fields: object) -> None:
        layout.append_log(self.folder, event, **fields)
