"""Assigns items to actors, and reassigns them when an actor is lost or slow.

An item keeps its number however often it is assigned. Its first answer counts; later answers are dropped. So an item
may be done twice, and the caller's function has to allow that.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tokenmill.executors.outcomes import Attempt, Cause, Died, Done, ExitReport, Failed, Outcome, RetryPolicy, Worker

# An item is late after this many seconds, and after COPY_FACTOR times the mean; an idle actor then gets a copy of it.
COPY_SECONDS = 5.0
COPY_FACTOR = 3.0

# Seconds between two searches for late items: there may be thousands of items and hundreds of idle actors.
SEARCH_SECONDS = 1.0

# Seconds of work that each worker holds in reserve while calls are in transit, beyond what replies are gathered for.
RESERVE_SECONDS = 0.05

# Maximum of such items for each worker.
MAX_RESERVE = 64

# Number of other nodes that try an item after one node failed at it.
MAX_OTHER_NODES = 2

# Characters of an error message that the report of a retry shows.
SHOWN_MESSAGE = 300

Numbered = tuple[int, Any]


def node_of(actor: str) -> str:
    """The id of the actor's node, which is the first part of the actor's name."""
    return actor.partition("/")[0]


@dataclass
class _OpenItem:
    """An item without an outcome: the actors that hold it, since when, and the nodes that failed at it."""

    attempt: Attempt
    actors: set[str] = field(default_factory=set)
    since: float = 0.0
    failures: int = 0
    failed_on: set[str] = field(default_factory=set)


class Dispatch:
    """The items of one run. `numbers` continues from run to run, so that a late answer cannot match a new item."""

    def __init__(self, items: Iterable[Any], policy: RetryPolicy, numbers: Iterator[int]) -> None:
        self._items = iter(items)
        self._policy = policy
        self._numbers = numbers
        self._open: dict[int, _OpenItem] = {}
        self._held: dict[str, set[int]] = {}
        self._waiting: deque[int] = deque()
        self._is_exhausted = False
        self._done = 0
        self._seconds = 0.0
        self._searched = -math.inf
        self._late: deque[int] = deque()
        # By node: how often it failed at items that another node could do, since its last success.
        self.faults: Counter[str] = Counter()

    def is_done(self) -> bool:
        """Whether every item has its outcome."""
        if not self._open and not self._is_exhausted and (number := self._draw()) is not None:
            self._waiting.append(number)
        return not self._open

    def reserve(self, gather_seconds: float) -> int:
        """Number of items that a worker should hold beyond its current one: more if items are short."""
        mean = self._seconds / max(self._done, 1)
        return min(1 + int((RESERVE_SECONDS + gather_seconds) / max(mean, 1e-6)), MAX_RESERVE) if self._done else 1

    def held(self, actor: str) -> int:
        """Number of items that an actor holds."""
        return len(self._held.get(actor, ()))

    def give(self, actor: str, room: int) -> list[Numbered]:
        """Up to `room` items for an actor: retries, then new items; for an idle actor also copies of late items."""
        numbers = list(itertools.islice(iter(lambda: self._next(actor), None), max(room, 0)))
        if not numbers and not self.held(actor):
            numbers = list(itertools.islice(self._take_late(), (room + 1) // 2))
        for number in numbers:
            entry = self._open[number]
            entry.actors.add(actor)
            entry.since = time.monotonic()
        self._held.setdefault(actor, set()).update(numbers)
        return [(number, self._open[number].attempt.item) for number in numbers]

    def answer(self, actor: str, number: int, outcome: Outcome[Any, Any]) -> Outcome[Any, Any] | None:
        """The outcome of an item; None if it does not count, because there was one before or another actor retries."""
        entry = self._open.get(number)
        if entry is None:
            return None
        outcome = replace(outcome, item=entry.attempt.item)
        if isinstance(outcome, Died) and not outcome.final:
            return outcome
        if not isinstance(outcome, Done) and entry.actors != {actor}:
            self._take_from(actor, number)  # an actor that was cut off may fail for that reason alone
            return None
        if isinstance(outcome, Failed) and self._may_succeed_elsewhere(actor, entry, outcome):
            return self._retry_elsewhere(actor, number, outcome)
        if isinstance(outcome, Done):
            self._done += 1
            self._seconds += outcome.seconds
            self.faults.pop(node_of(actor), None)
            self.faults.update(entry.failed_on - {node_of(actor)})
        self._close(number)
        return outcome

    def _may_succeed_elsewhere(self, actor: str, entry: _OpenItem, failure: Failed[Any]) -> bool:
        kind = failure.error_class
        if kind is None or not kind.may_succeed_elsewhere or entry.failures >= MAX_OTHER_NODES:
            return False
        return any(node_of(holder) not in {*entry.failed_on, node_of(actor)} for holder in self._held)

    def _retry_elsewhere(self, actor: str, number: int, failure: Failed[Any]) -> Died[Any]:
        """Queue an item for another node, and report the failure as a loss."""
        entry = self._open[number]
        entry.failures += 1
        entry.failed_on.add(node_of(actor))
        self._take_from(actor, number)
        end = ExitReport(0, Cause.NODE_LOST, detail=" ".join(failure.message.split())[:SHOWN_MESSAGE])
        death = self._death(entry, end, failure.worker)
        entry.since = time.monotonic()
        self._waiting.append(number)
        return replace(death, final=False)

    def lose(self, actor: str, end: ExitReport, worker: Worker) -> list[Died[Any]]:
        """Queue the items of a lost actor for others. If it answers after all, and first, its answer counts."""
        deaths = []
        for number in sorted(self._held.pop(actor, ())):
            entry = self._open[number]
            self._take_from(actor, number)
            if entry.actors:
                continue
            deaths.append(self._death(entry, end, worker))
            entry.attempt = entry.attempt.after(end)
            if deaths[-1].final:
                self._close(number)
            else:
                self._waiting.append(number)
        return deaths

    def _death(self, entry: _OpenItem, end: ExitReport, worker: Worker) -> Died[Any]:
        return Died(
            item=entry.attempt.item,
            end=end,
            worker=worker,
            seconds=time.monotonic() - entry.since,
            attempt=entry.attempt.number,
            final=entry.attempt.after(end).is_exhausted(self._policy),
            output_tail="",
            note=b"",
            workers=0,
        )

    def _next(self, actor: str) -> int | None:
        """The number of an item that no actor holds.

        An item that this node failed at is kept for other nodes for COPY_SECONDS.
        """
        for _ in range(len(self._waiting)):
            number = self._waiting.popleft()
            entry = self._open.get(number)
            if entry is None:
                continue  # an actor that had counted as lost has answered
            if node_of(actor) not in entry.failed_on or time.monotonic() - entry.since > COPY_SECONDS:
                return number
            self._waiting.append(number)
        return self._draw()

    def _draw(self) -> int | None:
        """Take a new item; return its number, or None if there is no further item."""
        for item in self._items:
            number = next(self._numbers)
            self._open[number] = _OpenItem(Attempt(item))
            return number
        self._is_exhausted = True
        return None

    def _take_late(self) -> Iterator[int]:
        """Take items that one actor has held for too long, the longest first. Idle actors share what a search finds."""
        now = time.monotonic()
        if now - self._searched >= SEARCH_SECONDS:
            self._searched = now
            before = now - max(COPY_SECONDS, COPY_FACTOR * self._seconds / max(self._done, 1))
            late = [number for number, entry in self._open.items() if entry.actors and entry.since < before]
            self._late = deque(sorted(late, key=lambda number: self._open[number].since))
        while self._late:
            number = self._late.popleft()
            if number in self._open and len(self._open[number].actors) == 1:
                yield number

    def _take_from(self, actor: str, number: int) -> None:
        self._held.get(actor, set()).discard(number)
        self._open[number].actors.discard(actor)

    def _close(self, number: int) -> None:
        for actor in self._open.pop(number).actors:
            self._held.get(actor, set()).discard(number)
