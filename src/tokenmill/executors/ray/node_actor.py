"""The workers of one node, or of some of its processors, for an executor that gives out work to many nodes.

A crew is a local executor that is talked to by calls: what kills or stops a worker is found out, named and survived on
its own node, as it would be without a cluster.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from tokenmill.errors import RunFailed
from tokenmill.executors.local import LOOK_SECONDS, ActiveRun, LocalExecutor
from tokenmill.executors.outcomes import Died, Outcome, RetryPolicy
from tokenmill.system import environment, machine

BEAT_SECONDS = 1.0
"""After how long a crew answers, even if it has nothing to tell."""

GATHER_SECONDS = 0.02
"""How long it waits for more outcomes after the first: many that take no time are told together."""


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """What a crew is made with: modules to load first, how much its workers may hold, and settings of this process.

    `version` is that of tokenmill where the work is given out: the crew's has to be the same.
    """

    version: str
    preload: tuple[str, ...]
    workers: int
    worker_bytes: int | None
    memory_bytes: int | None
    settings: dict[str, str]


@dataclass(frozen=True, slots=True)
class NodeReply:
    """What a crew tells: outcomes, with the number of the item in place of the item, and how many workers it has."""

    outcomes: list[Outcome[int, Any]]
    workers: int


def own_version() -> str:
    """The version of tokenmill that is installed here."""
    return importlib.metadata.version("tokenmill")


class _Feed:
    """Items that come by and by: an iterator that may have more after its end."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if not self.items:
            raise StopIteration
        return self.items.popleft()


class NodeActor:
    """Supervised workers. Make and use it in one thread: they end with it."""

    def __init__(self, equipment: NodeConfig) -> None:
        if equipment.version != own_version():
            raise RunFailed(f"it has tokenmill {own_version()}, and the run is of tokenmill {equipment.version}")
        self._own_settings = environment.exported()
        environment.use_exported(self._own_settings, equipment.settings)
        machine.reset_oom_score()  # Ray raises the score of its processes: the kernel would kill the actor first
        self._equipment = equipment
        self._executor = LocalExecutor(equipment.preload)
        self._feed = _Feed()
        self._numbers: dict[int, list[int]] = {}
        self._shift: ActiveRun | None = None

    def begin(self, order: tuple[Callable[[Any], Any], RetryPolicy, dict[str, str]]) -> NodeReply:
        """From now on, do this with the items that come, on these terms and with these settings of storage.

        What was being done is left.
        """
        function, terms, given = order
        environment.use_exported(self._own_settings, given)
        it = self._equipment
        if self._shift is None:  # later there may be fewer, because memory ran out
            self._executor.start(it.workers, it.worker_bytes, it.memory_bytes)
        self._feed, self._numbers = _Feed(), {}
        self._shift = self._executor.begin(function, self._feed, terms)
        return NodeReply([], len(self._executor.pids))  # which waits until all workers are there

    def exchange(self, items: list[tuple[int, Any]]) -> NodeReply:
        """Take more items; tell what has come of some, or after a while that nothing has."""
        for number, item in items:
            self._feed.items.append(item)
            self._numbers.setdefault(id(item), []).append(number)  # an item is known by itself while it is here
        outcomes: list[Outcome[int, Any]] = []
        until = time.monotonic() + BEAT_SECONDS
        while self._shift is not None and self._executor.hand_out(self._shift) and time.monotonic() < until:
            for outcome in self._executor.collect(self._shift, min(LOOK_SECONDS, until - time.monotonic())):
                if not outcomes:
                    until = time.monotonic() + GATHER_SECONDS
                outcomes.append(self._numbered(outcome))
        return NodeReply(outcomes, self._executor.workers)

    def _numbered(self, outcome: Outcome[Any, Any]) -> Outcome[int, Any]:
        numbers = self._numbers[id(outcome.item)]
        number = numbers[0]
        if not isinstance(outcome, Died) or outcome.final:
            numbers.pop(0)
            if not numbers:
                del self._numbers[id(outcome.item)]
        return replace(outcome, item=number)
