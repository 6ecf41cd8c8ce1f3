"""Check the parts, the vocabulary and the quarantine file of a store, and collect all problems."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tokenmill.errors import TRY_AGAIN, CorruptStore, RunFailed, StoreError
from tokenmill.executors import progress
from tokenmill.executors.messages import exit_code_of_failures, work_failed
from tokenmill.executors.outcomes import Done, Executor, Failed, Item, Value
from tokenmill.pipeline import plan
from tokenmill.pipeline.freeze import FrozenRun
from tokenmill.pipeline.verify import Verify
from tokenmill.storage import Folder
from tokenmill.store import layout, quarantine

NAMED_PROBLEMS = 10


@dataclass
class Checks:
    """Runs checks in workers and collects the problems that they find."""

    executor: Executor
    report: progress.Reporter
    workers: int
    problems: list[str] = field(default_factory=list)

    def run(
        self, function: Callable[[Item], Value], items: Iterable[Item], describe: Callable[[Item], str]
    ) -> Iterator[Done[Item, Value]]:
        """Yield the items without a problem, as they are done."""
        for outcome in self.executor.run(function, items):
            if isinstance(outcome, Done):
                yield outcome
            elif isinstance(outcome, Failed):
                if outcome.exit_code == TRY_AGAIN:  # the item could not be checked, so it may have no problem
                    raise work_failed([outcome], describe)
                self.problems.append(outcome.message)
            elif outcome.final:
                code = exit_code_of_failures([outcome])
                raise RunFailed(f"the worker that checked {describe(outcome.item)} {outcome.how}", exit_code=code)

    def raise_problems(self, folder: Folder) -> None:
        """Raise CorruptStore if there are problems."""
        if not self.problems:
            return
        lines = [line for problem in self.problems[:NAMED_PROBLEMS] for line in problem.splitlines()]
        if len(self.problems) > NAMED_PROBLEMS:
            lines.append(f"and {len(self.problems) - NAMED_PROBLEMS} more")
        raise CorruptStore(f"{len(self.problems)} problems in {folder.root}", *lines)


def check_store(folder: Folder, frozen: FrozenRun, manifest: pa.Table, function: Verify, checks: Checks) -> int:
    """Check everything in a store but its exports; return how many documents were compared with the reference."""
    try:
        layout.read_vocabulary(folder, frozen.run.job.tokenizer)
    except StoreError as error:
        checks.problems.append(str(error))
    compared, step = 0, progress.Step()
    checks.report.begin("verify", int(frozen.plan["text_bytes"].to_numpy().sum()), 0, checks.workers)
    tasks = plan.tasks(frozen.plan, frozen.sources, range(frozen.run.units))
    for done in checks.run(function, tasks, lambda task: f"part {task.unit}"):
        summary = done.value.summary
        if not layout.is_listed(manifest, summary):
            checks.problems.append(f"part {done.item.unit} is not the one the manifest describes")
        compared += done.value.compared
        step = progress.Step(step.text_bytes + summary.text_bytes, step.tokens + summary.tokens, step.units + 1)
        checks.report.advance(done.item.text_bytes, step)
    listed, expected = sum(1 for _ in quarantine.read(folder)), int(np.sum(manifest["quarantined"].to_numpy()))
    if listed != expected:
        counts = f"names {listed:,} rows, and the manifest counts {expected:,} in quarantine"
        checks.problems.append(f"{quarantine.TOGETHER} {counts}")
    return compared
