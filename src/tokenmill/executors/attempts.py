"""The queue of items that wait for a worker, and the deaths that each item has caused so far."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tokenmill.executors.outcomes import ExitReport
from tokenmill.executors.retry_policy import RetryPolicy


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


class Queue:
    """Hands out retries first, then new items, which are taken from the iterable one by one."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items: Iterator[Any] = iter(items)
        self._retries: deque[Attempt] = deque()

    def next(self) -> Attempt | None:
        """The next attempt, or None if no attempt is waiting now."""
        if self._retries:
            return self._retries.popleft()
        for item in self._items:
            return Attempt(item)
        return None

    def retry(self, attempt: Attempt) -> None:
        """Hand this out after the other retries."""
        self._retries.append(attempt)

    def put_back(self, attempts: Iterable[Attempt]) -> None:
        """Hand these out before all others: their worker ended before it started them."""
        self._retries.extendleft(reversed(list(attempts)))
