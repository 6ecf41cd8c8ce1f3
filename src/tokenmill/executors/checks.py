"""Checks that run in workers, and the problems that they find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from tokenmill.errors import TRY_AGAIN, CorruptStore, IncompleteStore, RunFailed
from tokenmill.executors import progress
from tokenmill.executors.fan_out import run_all
from tokenmill.executors.messages import exit_code_of_failures, work_failed
from tokenmill.executors.outcomes import DEFAULT_POLICY, Died, Done, Executor, Failed, Item, Value
from tokenmill.humanize import count

# How many problems an error names.
NAMED_PROBLEMS = 10


@dataclass
class Checks:
    """Runs checks in workers and collects the problems that they find, and what is not complete yet."""

    executor: Executor
    report: progress.Reporter
    workers: int
    problems: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)

    def run(
        self, function: Callable[[Item], Value], items: Iterable[Item], describe: Callable[[Item], str]
    ) -> Iterator[Done[Item, Value]]:
        """Yield the items without a problem, as they are done."""

        def on_failure(failure: Failed[Item] | Died[Item]) -> None:
            if isinstance(failure, Died):
                code = exit_code_of_failures([failure])
                raise RunFailed(f"the worker that checked {describe(failure.item)} {failure.end}", exit_code=code)
            if failure.exit_code == TRY_AGAIN:  # the item could not be checked, so it may have no problem
                raise work_failed([failure], describe)
            self.problems.append(failure.message)

        return run_all(self.executor, function, items, policy=DEFAULT_POLICY, on_failure=on_failure)

    def raise_problems(self, where: str) -> None:
        """Raise CorruptStore if there are problems, else IncompleteStore if something could not be checked yet.

        `where` names what was checked.
        """
        found = self.problems + self.unfinished
        lines = [line for problem in found[:NAMED_PROBLEMS] for line in problem.splitlines()]
        if len(found) > NAMED_PROBLEMS:
            lines.append(f"and {len(found) - NAMED_PROBLEMS} more")
        if self.problems:
            raise CorruptStore(f"{count(len(found), 'problem')} in {where}", *lines)
        if self.unfinished:
            raise IncompleteStore(f"not all of {where} could be checked", *lines, exit_code=TRY_AGAIN)
