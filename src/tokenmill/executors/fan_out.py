"""Give out work that is not units of a run, show how far it is, and tell of deaths and failures as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tokenmill.executors.messages import describe_death, fewer_workers, work_failed
from tokenmill.executors.outcomes import Cause, Died, Done, Executor, Failed, Item, RetryPolicy, Value
from tokenmill.executors.progress import Reporter, Step

MAX_FAILURES = 10
PATIENT = RetryPolicy(kills=10)
"""What somebody else kills, or what is lost with its node, is tried more often."""


@dataclass
class FanOut:
    """Workers and whoever watches them. Progress is counted in tokens of `token_bytes` each."""

    pool: Executor
    report: Reporter
    workers: int
    token_bytes: int = 1
    deaths: int = 0
    _step: Step = field(default_factory=Step)

    def begin(self, title: str, tokens: int, done: int = 0) -> None:
        """A long step starts; `done` tokens of it were done before."""
        self._step = Step(deaths=self.deaths)
        self.report.begin(title, tokens * self.token_bytes, done * self.token_bytes, self.workers)

    def advance(self, tokens: int) -> None:
        """Some more tokens are done."""
        moved = tokens * self.token_bytes
        self.count(moved, moved, tokens)

    def count(self, planned_bytes: int, text_bytes: int, tokens: int) -> None:
        """The same, where it is text that was planned."""
        step = self._step
        self._step = Step(step.text_bytes + text_bytes, step.tokens + tokens, step.units + 1, self.deaths)
        self.report.advance(planned_bytes, self._step)

    def each(
        self, function: Callable[[Item], Value], items: Iterable[Item], describe: Callable[[Item], str]
    ) -> Iterator[Done[Item, Value]]:
        """Yield what is done, as it comes; raise RunFailed at the end if something could not be done."""
        failures: list[Failed[Any] | Died[Any]] = []
        for outcome in self.pool.run(function, _until(items, lambda: len(failures) >= MAX_FAILURES), PATIENT):
            if isinstance(outcome, Done):
                yield outcome
                continue
            if isinstance(outcome, Died):
                self.deaths += 1
                then = "given up" if outcome.final else "tried again"
                self.report.say(f"{describe_death(outcome, describe(outcome.item))}; it is {then}")
                if outcome.end.cause is Cause.MEMORY and outcome.workers < self.workers:
                    self.workers = outcome.workers
                    self.report.say(f"note: {fewer_workers(self.workers)}")
            if isinstance(outcome, Failed) or outcome.final:
                failures.append(outcome)
        if failures:
            raise work_failed(failures, describe)


def _until(items: Iterable[Item], enough: Callable[[], bool]) -> Iterator[Item]:
    for item in items:
        if enough():
            return
        yield item
