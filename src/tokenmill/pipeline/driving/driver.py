"""Drives one call's work on a frozen run: starts the units without a part, and takes their outcomes.

A unit that kills two workers, or raises an unexpected error, waits for isolation. When all other units are done, it is
tokenized document by document until the documents that are to blame are known.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenmill.errors import BadDocument, LimitReached, MemoryShortage, StorageError, StoreError, TokenizerError
from tokenmill.executors.outcomes import Died, Done, Executor, Failed, RetryPolicy
from tokenmill.pipeline.driving.context import Companion, RunContext
from tokenmill.pipeline.driving.inventory import PartInventory
from tokenmill.pipeline.driving.isolation import (
    MAX_FAILURES_WITHOUT_SUCCESS,
    Isolation,
    after_probe,
    after_trouble,
    may_be_a_document,
    ran_out_of_memory,
)
from tokenmill.pipeline.driving.manifest import ManifestBuilder
from tokenmill.pipeline.driving.row_limits import RowBudget
from tokenmill.pipeline.driving.schedule import CommittedUnits, Schedule
from tokenmill.pipeline.unit.commit import Committed
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.pipeline.unit.isolate import Isolate, IsolatedUnit
from tokenmill.pipeline.unit.messages import bad_document, run_failed
from tokenmill.pipeline.unit.plan import UnitTask
from tokenmill.pipeline.unit.tokenize import Tokenize
from tokenmill.store.job import Job

# The run is aborted when this many units have failed.
MAX_FAILURES = 100

# Units that a worker holds beyond the current one where a network is involved: one is fetched, one is published.
PREFETCH_UNITS = 2

# Errors after which no other unit is started: the store, the network, the tokenizer or the system fails, or a bad
# document is not allowed.
_ENDS_RUN = (StoreError, StorageError, TokenizerError, BadDocument, LimitReached, MemoryShortage)


@dataclass
class Driver:
    """The loop over units. `chosen_engine` encodes until an audit fails. `seconds` is the time that `run` has taken."""

    context: RunContext
    chosen_engine: str
    manifest: ManifestBuilder
    committed: CommittedUnits
    schedule: Schedule
    isolation: Isolation
    inventory: PartInventory
    budget: RowBudget
    companions: Sequence[Companion] = ()
    seconds: float = field(default=0.0, init=False)
    _failures: list[Failed[UnitTask] | Died[UnitTask]] = field(default_factory=list, init=False)

    @property
    def engine(self) -> str:
        """The engine that encodes now."""
        return self.context.frozen.reference_engine if self.inventory.recheck else self.chosen_engine

    def run(self, executor: Executor) -> None:
        """Commit every unit that has no part; raise RunFailed if some units could not be done."""
        if not len(self.committed.missing()):
            return
        started = time.monotonic()
        try:
            self._run_missing(executor)
            while not self._failures and self.inventory.check_audit() and len(self.committed.missing()):
                self._run_missing(executor)
        finally:
            for context in (self.context, *(companion.context for companion in self.companions)):
                context.events.log.flush()
            self.seconds += time.monotonic() - started
        if self._failures and self.context.is_shared:
            self.committed.list_parts()  # another driver may have done what failed here
        missing = len(self.committed.missing())
        if self._failures and missing:
            units = self.context.frozen.run.units
            raise run_failed(self._failures, missing, units, self.context.events.log.path)
        if missing:
            raise self.budget.exceeded_so_far()

    def _run_missing(self, executor: Executor) -> None:
        self._begin("tokenize")
        while len(self._pending_units()) and not self._should_abort():
            self._dispatch(executor, self.engine)
            while len(self.isolation) and not self._should_abort():
                self._isolate(executor, self.engine)
            if not self._failures and self.inventory.check_audit():
                self._begin("recheck")

    def _begin(self, title: str) -> None:
        _, done_bytes = self.committed.progress()
        self.context.report.begin(title, self.context.frozen.run.text_bytes, done_bytes, self.context.workers)

    def _dispatch(self, executor: Executor, engine: str) -> None:
        """Tokenize the pending units until they are done, too many are in trouble, or the engine changes."""

        def should_stop() -> bool:
            is_full = self.isolation.is_full(self.context.events.step.units)
            return self.engine != engine or is_full or self._should_abort()

        is_remote = self.context.folder.is_remote or self.context.has_remote_sources
        policy = RetryPolicy(
            max_crashes=2,
            max_kills=10,
            prefetch=PREFETCH_UNITS if is_remote else 0,
            should_stop=self.schedule.is_done_elsewhere,
        )
        targets = tuple(companion.function() for companion in self.companions)
        function: Callable[[UnitTask], Any] = Tokenize(*self._function_arguments(engine), targets)
        for outcome in executor.run(function, self.schedule.tasks(self._pending_units(), should_stop), policy):
            task = outcome.item
            if not isinstance(outcome, Died) or outcome.final:
                self.committed.stop(task.unit)
            if isinstance(outcome, Done):
                self._take(task, outcome.value, outcome, engine)
                continue
            self._record_trouble(task, outcome, "its documents will be tried one by one")
            if may_be_a_document(outcome):
                self.isolation.add(task)

    def _isolate(self, executor: Executor, engine: str) -> None:
        """Give each unit that waits for isolation one more attempt."""
        policy = self.isolation.policy()
        function = Isolate(*self._function_arguments(engine))
        units = itertools.takewhile(lambda _: not self._should_abort(), self.isolation.waiting())
        for outcome in executor.run(function, units, policy):
            unit = outcome.item
            if isinstance(outcome, Done) and outcome.value is not None:
                self._take(unit.task, outcome.value, outcome, engine)
            elif isinstance(outcome, Done):
                self.isolation.update(after_probe(unit))
            else:
                self._record_trouble(unit.task, outcome, "the document is being isolated")
                # A unit that ran out of memory beside others is tried again as the only one.
                if may_be_a_document(outcome) and (policy.workers == 1 or not ran_out_of_memory(outcome)):
                    self._conclude(unit, outcome)

    def _function_arguments(self, engine: str) -> tuple[str, Job, str, WorkerLimits, str, bool]:
        """The arguments that Tokenize and Isolate share."""
        context, frozen = self.context, self.context.frozen
        recheck = self.inventory.recheck
        return context.folder.root, frozen.run.job, engine, context.limits, frozen.reference_version, recheck

    def _record_trouble(self, task: UnitTask, trouble: Failed[Any] | Died[Any], next_step: str) -> None:
        """Report a failure or a death. The unit fails if it is not tried again and no document may be the reason."""
        self.isolation.note_memory(trouble)
        has_failed = not may_be_a_document(trouble) and (isinstance(trouble, Failed) or trouble.final)
        if isinstance(trouble, Failed):
            self.context.events.failed(task, trouble, next_step)
        elif trouble.final:
            self.context.events.died(task, trouble, "given up" if has_failed else next_step)
        else:
            self.context.events.died(task, trouble, "tried again")
        if has_failed:
            self._fail(task, trouble)

    def _conclude(self, unit: IsolatedUnit, trouble: Failed[Any] | Died[Any]) -> None:
        """Decide what happens to a unit that failed or died in isolation."""
        after = after_trouble(unit, trouble)
        if after is None:
            self._fail(unit.task, trouble)
            return
        has_excluded = len(after.excluded) > len(unit.excluded)
        if has_excluded and self.context.limits.on_bad == "fail":
            self._fail(unit.task, bad_document(unit.task, after.excluded[-1], trouble.worker))
            return
        self.isolation.update(after)
        if has_excluded:
            self.context.events.excluded(unit.task, after.excluded[-1])

    def _fail(self, task: UnitTask, trouble: Failed[Any] | Died[Any]) -> None:
        self.isolation.remove([task.unit])
        self._failures.append(replace(trouble, item=task))

    def _take(self, task: UnitTask, committed: Committed, done: Done[Any, Any], engine: str) -> None:
        """Take a committed unit, unless another driver's part of it was listed meanwhile.

        The engine changes when a worker that was given `engine` used another one. Units that other workers made with
        `engine` at that time do not change it back.
        """
        self.isolation.remove([task.unit])
        if self.committed[task.unit]:
            return
        self.committed.commit(task)
        if committed.by_other_driver:
            self.schedule.saw_other_driver = True
        self.manifest.add(committed.summary)
        if committed.engine != engine:
            self.chosen_engine = committed.engine
        self.context.events.committed(task, committed, done)
        for companion, part in zip(self.companions, committed.companions, strict=False):
            if part is not None and not part.by_other_driver:
                companion.context.events.record(task, part, done)

    def _pending_units(self) -> npt.NDArray[np.int64]:
        """The units that have no part, have not failed and do not wait for isolation."""
        failed = [failure.item.unit for failure in self._failures]
        isolated = [unit.task.unit for unit in self.isolation.waiting()]
        return np.setdiff1d(self.committed.missing(), [*failed, *isolated])

    def _should_abort(self) -> bool:
        """Whether no other unit should be started."""
        if any(isinstance(failure, Failed) and failure.error_class in _ENDS_RUN for failure in self._failures):
            return True
        most = MAX_FAILURES if self.context.events.step.units else MAX_FAILURES_WITHOUT_SUCCESS
        return len(self._failures) >= most or self.budget.is_hopeless()
