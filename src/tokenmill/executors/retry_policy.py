"""How often an executor tries an item again whose worker died, and how it hands items out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenmill.executors.outcomes import ExitReport


def never() -> bool:
    """Return False: the default of `RetryPolicy.should_stop`."""
    return False


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How items are handed out and retried.

    Attributes:
        max_crashes: Worker crashes after which an item is given up.
        max_kills: External kills and lost nodes after which an item is given up. They count apart from crashes,
            because only a crash can be the item's fault.
        workers: Workers used on each machine; None for all.
        prefetch: Items that a worker holds beyond the current one, so that the function can prefetch their data.
        should_stop: Polled while workers are busy. When it returns True, the run ends without an outcome for the
            items in progress.
    """

    max_crashes: int = 3
    max_kills: int = 3
    workers: int | None = None
    prefetch: int = 0
    should_stop: Callable[[], bool] = never


DEFAULT_POLICY = RetryPolicy()


@dataclass(frozen=True, slots=True)
class Attempt:
    """An item, and how many earlier attempts ended in a crash of the worker or in an external kill."""

    item: Any
    crashes: int = 0
    kills: int = 0

    @property
    def number(self) -> int:
        """Number of this attempt, from one."""
        return self.crashes + self.kills + 1

    def after(self, end: ExitReport) -> Attempt:
        """The next attempt, after this one ended in a death."""
        if end.by_others:
            return replace(self, kills=self.kills + 1)
        return replace(self, crashes=self.crashes + 1)

    def is_exhausted(self, policy: RetryPolicy) -> bool:
        """Whether the policy allows no further attempt."""
        return self.crashes >= policy.max_crashes or self.kills >= policy.max_kills
