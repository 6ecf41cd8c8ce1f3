"""The items of a run that are to be given out, and what they have been through."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tokenmill.executors.outcomes import Cause, RetryPolicy


@dataclass(frozen=True, slots=True)
class Attempt:
    """An item that is given out: how many attempts came to an end in its workers' own deaths, and by other hands."""

    item: Any
    deaths: int = 0
    kills: int = 0

    @property
    def attempt(self) -> int:
        """Which attempt it is, counted from one."""
        return self.deaths + self.kills + 1

    def after(self, cause: Cause) -> Attempt:
        """The next attempt, when this one ended in a death."""
        if cause in (Cause.KILLED, Cause.LOST):
            return replace(self, kills=self.kills + 1)
        return replace(self, deaths=self.deaths + 1)

    def is_hopeless(self, terms: RetryPolicy) -> bool:
        """Whether it has died as often as it may."""
        return self.deaths >= terms.deaths or self.kills >= terms.kills


class Queue:
    """What is given out next: first what comes back from dead workers, then items that are taken one by one."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._items: Iterator[Any] = iter(items)
        self._again: deque[Attempt] = deque()

    def next(self) -> Attempt | None:
        """The next one, or None if there is none now."""
        if self._again:
            return self._again.popleft()
        for item in self._items:
            return Attempt(item)
        return None

    def try_again(self, tried: Attempt) -> None:
        """Give this out again, after the others that came back before."""
        self._again.append(tried)

    def take_back(self, tries: Iterable[Attempt]) -> None:
        """Give these out again before all others: their worker had not come to them, or is not to be waited for."""
        self._again.extendleft(reversed(list(tries)))
