"""Open the executor that --on names, and run a function over items that are not units of a run, with progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

from tokenmill.errors import UsageError
from tokenmill.executors import progress, progress_bar
from tokenmill.executors.forkserver_main import Preload
from tokenmill.executors.local import LocalExecutor
from tokenmill.executors.messages import describe_death, fewer_workers, work_failed
from tokenmill.executors.outcomes import Cause, Died, Done, Executor, Failed, Item, Pool, RetryPolicy, Value
from tokenmill.executors.progress import Reporter, Step

# Failures after which no further item is handed out.
MAX_FAILURES = 10

# An external kill or a lost node says nothing about the item, so it is retried more often than after a crash.
PATIENT = RetryPolicy(max_kills=10)


def ignore(_: object) -> None:
    """Do nothing: a handler for failures or deaths that the caller does not need."""


def run_all(  # noqa: PLR0913 - one loop for all callers
    executor: Executor,
    function: Callable[[Item], Value],
    items: Iterable[Item],
    describe: Callable[[Item], str] = str,
    *,
    policy: RetryPolicy = PATIENT,
    on_death: Callable[[Died[Item]], None] = ignore,
    on_failure: Callable[[Failed[Item] | Died[Item]], None] | None = None,
) -> Iterator[Done[Item, Value]]:
    """Yield the results of a function in order of completion.

    Args:
        executor: Runs the function.
        function: The function.
        items: Its arguments, taken one by one.
        describe: Names an item in the error message.
        policy: How items are retried.
        on_death: Called for each death of a worker, whether its item is retried or not.
        on_failure: Called for each item that could not be done; it may raise. By default failures are collected, no
            item is handed out after MAX_FAILURES of them, and RunFailed is raised at the end.
    """
    failures: list[Failed[Item] | Died[Item]] = []
    wanted = takewhile(lambda _: len(failures) < MAX_FAILURES, items)
    for outcome in executor.run(function, wanted, policy):
        if isinstance(outcome, Done):
            yield outcome
            continue
        if isinstance(outcome, Died):
            on_death(outcome)
            if not outcome.final:
                continue
        (on_failure or failures.append)(outcome)
    if failures:
        raise work_failed(failures, describe, len(items) if isinstance(items, Sized) else None)


@dataclass
class FanOut:
    """An executor whose progress and deaths a reporter shows. Progress is counted in tokens of `token_bytes` each."""

    executor: Executor
    report: Reporter
    workers: int
    token_bytes: int = 1
    deaths: int = 0
    _step: Step = field(default_factory=Step)

    def begin(self, title: str, tokens: int, done: int = 0) -> None:
        """Start a long step, of which `done` tokens are done already."""
        self._step = Step(deaths=self.deaths)
        self.report.begin(title, tokens * self.token_bytes, done * self.token_bytes, self.workers)

    def advance(self, tokens: int) -> None:
        """Add tokens to the progress."""
        moved = tokens * self.token_bytes
        self.count(moved, moved, tokens)

    def skip(self, tokens: int) -> None:
        """Add tokens to the progress that another process has done."""
        self.report.advance(tokens * self.token_bytes, self._step)

    def count(self, planned_bytes: int, text_bytes: int, tokens: int) -> None:
        """Add to the progress of a step that was planned in bytes of text."""
        step = self._step
        self._step = Step(step.text_bytes + text_bytes, step.tokens + tokens, step.units + 1, self.deaths)
        self.report.advance(planned_bytes, self._step)

    def run(
        self,
        function: Callable[[Item], Value],
        items: Iterable[Item],
        describe: Callable[[Item], str],
        on_failure: Callable[[Failed[Item] | Died[Item]], None] | None = None,
    ) -> Iterator[Done[Item, Value]]:
        """Yield results as `run_all` does, and report each death."""

        def on_death(death: Died[Any]) -> None:
            self.deaths += 1
            then = "given up" if death.final else "tried again"
            self.report.say(f"{describe_death(death, describe(death.item))}; the item is {then}")
            if death.end.cause is Cause.MEMORY and death.workers < self.workers:
                self.workers = death.workers
                self.report.say(f"note: {fewer_workers(self.workers)}")

        return run_all(self.executor, function, items, describe, on_death=on_death, on_failure=on_failure)


LOCAL = "local"
RAY = "ray"


@contextmanager
def open_executor(
    on: str, preload: Preload, executor: Pool | None, reporter: progress.Reporter | None
) -> Iterator[tuple[Pool, progress.Reporter]]:
    """Yield the given executor and reporter, or new ones where they are None."""
    check_executor(on)
    # A local executor starts first: its workers load their libraries, which takes over a second, in the background.
    new = LocalExecutor(preload) if executor is None and on == LOCAL else None
    with new or nullcontext(), reporter if reporter is not None else progress_bar.for_python() as report:
        local = executor or new
        if local is not None:
            yield local, report
            return
        from tokenmill.executors.ray.executor import RayExecutor  # noqa: PLC0415 - an extra

        report.pending(f"cluster      joining {'the cluster of this machine' if on == RAY else on}")
        with RayExecutor(None if on == RAY else on, preload, report.say) as cluster:
            yield cluster, report


def check_executor(on: str) -> None:
    """Raise UsageError if --on names no executor."""
    if on not in (LOCAL, RAY) and not on.startswith(f"{RAY}://"):
        raise UsageError(f"--on is local, ray or ray://HOST:PORT, not {on!r}")
