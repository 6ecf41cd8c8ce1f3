"""Which crew has which items: given out, answered for, and given to another crew when one is lost or slow.

An item has one number, however often it is given out; the first answer that counts is taken, and later ones are not
heard. Items are safe to be done twice: that is what whoever gives them out to a cluster has to see to.
"""

from __future__ import annotations

import itertools
import math
import time
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tokenmill.executors.outcomes import Cause, Died, Done, ExitReport, Failed, Outcome, RetryPolicy, Worker
from tokenmill.executors.retries import Attempt

COPY_SECONDS = 5.0
COPY_TIMES = 3.0
"""An item that takes so long, and so many times as long as others do, is given to a second crew that has no other."""

LOOK_SECONDS = 1.0
"""How often such items are looked for: there may be thousands of them, and hundreds of crews without work."""

STOCK_SECONDS = 0.05
MAX_STOCK = 64
"""How much work lies ready for a worker while calls are on their way, in seconds, and in items at most."""

ELSEWHERE = 2
"""How many other nodes try what one has failed at."""

SHOWN = 300

Numbered = tuple[int, Any]


def node_of(crew: str) -> str:
    """The node that a crew is on, as its name tells."""
    return crew.partition("/")[0]


@dataclass
class _Given:
    """An item that has no outcome yet, who has it, and since when."""

    tried: Attempt
    crews: set[str] = field(default_factory=set)
    since: float = 0.0
    failures: int = 0
    failed_on: set[str] = field(default_factory=set)


class Dispatch:
    """The items of one run. They get new numbers, so that those of an earlier run are not taken for them."""

    def __init__(self, items: Iterable[Any], terms: RetryPolicy, numbers: Iterator[int]) -> None:
        self._items = iter(items)
        self._terms = terms
        self._numbers = numbers
        self._open: dict[int, _Given] = {}
        self._held: dict[str, set[int]] = {}
        self._waiting: deque[int] = deque()
        self._ended = False
        self._done = 0
        self._seconds = 0.0
        self._looked = -math.inf
        self.faults: Counter[str] = Counter()
        """How often each node has failed at what another one could do, since it last did something itself."""

    def is_done(self) -> bool:
        """Whether every item has its outcome."""
        if not self._open and not self._ended and (number := self._draw()) is not None:
            self._waiting.append(number)
        return not self._open

    def ahead(self) -> int:
        """How many more items a worker should have than it is at: more if they take next to no time."""
        mean = self._seconds / max(self._done, 1)
        return min(1 + int(STOCK_SECONDS / max(mean, 1e-6)), MAX_STOCK) if self._done else 1

    def held(self, crew: str) -> int:
        """How many items a crew has."""
        return len(self._held.get(crew, ()))

    def give(self, crew: str, room: int) -> list[Numbered]:
        """Items for a crew: those that came back from others first; if there are none, copies of what is late."""
        numbers = list(itertools.islice(iter(lambda: self._next(crew), None), max(room, 0)))
        if not numbers and not self.held(crew):
            numbers = self._late(crew)[: (room + 1) // 2]
        for number in numbers:
            given = self._open[number]
            given.crews.add(crew)
            given.since = time.monotonic()
        self._held.setdefault(crew, set()).update(numbers)
        return [(number, self._open[number].tried.item) for number in numbers]

    def answer(self, crew: str, number: int, outcome: Outcome[Any, Any]) -> Outcome[Any, Any] | None:
        """The outcome of an item, or None if it does not count: there was one before, or another crew will have one."""
        given = self._open.get(number)
        if given is None:
            return None
        outcome = replace(outcome, item=given.tried.item)
        if isinstance(outcome, Died) and not outcome.final:
            return outcome
        if not isinstance(outcome, Done) and given.crews != {crew}:
            self._take_from(crew, number)  # a crew that was cut off fails for that reason alone
            return None
        if isinstance(outcome, Failed) and self._is_for_others(crew, given, outcome):
            return self._elsewhere(crew, number, outcome)
        if isinstance(outcome, Done):
            self._done += 1
            self._seconds += outcome.seconds
            self.faults[node_of(crew)] = 0
            self.faults.update(given.failed_on - {node_of(crew)})
        self._close(number)
        return outcome

    def _is_for_others(self, crew: str, given: _Given, failure: Failed[Any]) -> bool:
        """Whether another node may do what one has failed at."""
        if failure.kind not in self._terms.elsewhere or given.failures >= ELSEWHERE:
            return False
        return bool({node_of(each) for each in self._held} - given.failed_on - {node_of(crew)})

    def _elsewhere(self, crew: str, number: int, failure: Failed[Any]) -> Died[Any]:
        """Let another node try what one has failed at, perhaps by its own fault."""
        given = self._open[number]
        given.failures += 1
        given.failed_on.add(node_of(crew))
        self._take_from(crew, number)
        end = ExitReport(0, Cause.LOST, detail=" ".join(failure.message.split())[:SHOWN])
        death = self._death(given, end, failure.worker)
        given.since = time.monotonic()
        self._waiting.append(number)
        return replace(death, final=False)

    def lose(self, crew: str, end: ExitReport, worker: Worker) -> list[Died[Any]]:
        """Take back what a crew has, to be given to others. If it answers after all, and first, its answer counts."""
        deaths = []
        for number in sorted(self._held.pop(crew, ())):
            given = self._open[number]
            self._take_from(crew, number)
            if given.crews:
                continue
            deaths.append(self._death(given, end, worker))
            given.tried = given.tried.after(end.cause)
            if deaths[-1].final:
                self._close(number)
            else:
                self._waiting.append(number)
        return deaths

    def _death(self, given: _Given, end: ExitReport, worker: Worker) -> Died[Any]:
        return Died(
            item=given.tried.item,
            end=end,
            worker=worker,
            seconds=time.monotonic() - given.since,
            attempt=given.tried.attempt,
            final=given.tried.after(end.cause).is_hopeless(self._terms),
            last_words="",
            note=b"",
            workers=0,
        )

    def _next(self, crew: str) -> int | None:
        """The number of an item that nobody has, and that this node has not failed at, if others can be waited for."""
        for _ in range(len(self._waiting)):
            number = self._waiting.popleft()
            given = self._open.get(number)
            if given is None:
                continue  # it was answered for by a crew that had been given up
            if node_of(crew) not in given.failed_on or time.monotonic() - given.since > COPY_SECONDS:
                return number
            self._waiting.append(number)
        return self._draw()

    def _draw(self) -> int | None:
        for item in self._items:
            number = next(self._numbers)
            self._open[number] = _Given(Attempt(item))
            return number
        self._ended = True
        return None

    def _late(self, crew: str) -> list[int]:
        """Items that one other crew has had for too long, those first that it has had longest."""
        if time.monotonic() - self._looked < LOOK_SECONDS:
            return []
        self._looked = time.monotonic()
        late = max(COPY_SECONDS, COPY_TIMES * self._seconds / max(self._done, 1))
        before = time.monotonic() - late
        found = [
            number
            for number, given in self._open.items()
            if len(given.crews) == 1 and crew not in given.crews and given.since < before
        ]
        return sorted(found, key=lambda number: self._open[number].since)

    def _take_from(self, crew: str, number: int) -> None:
        self._held.get(crew, set()).discard(number)
        self._open[number].crews.discard(crew)

    def _close(self, number: int) -> None:
        for crew in self._open.pop(number).crews:
            self._held.get(crew, set()).discard(number)
