"""The actor that supervises the workers of one node, or of some of its processors.

It is a local executor behind remote calls: the death of a worker is detected, named and survived on its own node, as
it is without a cluster.
"""

from __future__ import annotations

import importlib.metadata
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from tokenmill.errors import RunFailed
from tokenmill.executors.forkserver_main import Preload
from tokenmill.executors.local import CHECK_SECONDS, ActiveRun, LocalExecutor
from tokenmill.executors.outcomes import Died, Outcome, RetryPolicy
from tokenmill.system import environment, machine
from tokenmill.system.storage_settings import Shared, use

# Seconds after which an actor replies even without an outcome, unless it gathers outcomes for longer.
REPLY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class NodeConfig:
    """The configuration of an actor.

    Attributes:
        version: The driver's version of tokenmill; the actor's has to be the same.
        preload: What workers load first.
        workers: Number of workers.
        settings: The settings of storage that the driver shares with its workers.
    """

    version: str
    preload: Preload
    workers: int
    settings: Shared


@dataclass(frozen=True, slots=True)
class NodeOrder:
    """What an actor does in a run: the function, its policy, the settings of storage, and the limits of memory.

    A worker that holds more than `worker_bytes` is replaced between items. `memory_bytes` is for all workers of the
    actor.
    """

    function: Callable[[Any], Any]
    policy: RetryPolicy
    settings: Shared
    worker_bytes: int | None = None
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class NodeReply:
    """Outcomes, each with the number of its item in place of the item, and the numbers of workers (see Pool)."""

    outcomes: list[Outcome[int, Any]]
    workers: int
    waiting: int = 0


def own_version() -> str:
    """The installed version of tokenmill."""
    return importlib.metadata.version("tokenmill")


class _Feed:
    """An iterator that can have further items after it was exhausted."""

    def __init__(self) -> None:
        self.items: deque[Any] = deque()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        if not self.items:
            raise StopIteration
        return self.items.popleft()


class NodeActor:
    """Supervises workers. Create and use it in one thread: the workers end with that thread."""

    def __init__(self, config: NodeConfig) -> None:
        if config.version != own_version():
            raise RunFailed(f"it has tokenmill {own_version()}, and the run is of tokenmill {config.version}")
        self._own_variables = environment.exported()
        self._adopt(config.settings)
        machine.set_oom_score(0)  # Ray raises the score of its processes: the kernel would kill the actor first
        self._config = config
        self._executor = LocalExecutor(config.preload)
        self._feed = _Feed()
        self._numbers: dict[int, list[int]] = {}
        self._run: ActiveRun | None = None

    def begin(self, order: NodeOrder) -> NodeReply:
        """Begin a run; an earlier run is abandoned."""
        self._adopt(order.settings)
        # A later run may have fewer workers, because memory ran out.
        workers = self._config.workers if self._run is None else self._executor.workers
        self._executor.start(workers, order.worker_bytes, order.memory_bytes)
        self._feed, self._numbers = _Feed(), {}
        with use(self._settings):
            self._run = self._executor.begin(order.function, self._feed, order.policy)
        return NodeReply([], len(self._executor.pids))  # `pids` waits until all workers are started

    def _adopt(self, shared: Shared) -> None:
        variables, self._settings = shared
        environment.use_exported(self._own_variables, variables)

    def exchange(self, items: list[tuple[int, Any]], gather_seconds: float) -> NodeReply:
        """Take further items; reply with outcomes, `gather_seconds` after the first, or without any after a while."""
        with use(self._settings):  # workers that are replaced receive them
            return self._exchange(items, gather_seconds)

    def _exchange(self, items: list[tuple[int, Any]], gather_seconds: float) -> NodeReply:
        for number, item in items:
            self._feed.items.append(item)
            self._numbers.setdefault(id(item), []).append(number)  # the item lives until its outcome
        outcomes: list[Outcome[int, Any]] = []
        until = time.monotonic() + max(REPLY_SECONDS, gather_seconds)
        while self._run is not None and self._executor.hand_out(self._run) and time.monotonic() < until:
            for outcome in self._executor.collect(self._run, min(CHECK_SECONDS, until - time.monotonic())):
                if not outcomes:
                    until = min(until, time.monotonic() + gather_seconds)
                outcomes.append(self._numbered(outcome))
        return NodeReply(outcomes, self._executor.workers, self._executor.waiting)

    def _numbered(self, outcome: Outcome[Any, Any]) -> Outcome[int, Any]:
        numbers = self._numbers[id(outcome.item)]
        number = numbers[0]
        if not isinstance(outcome, Died) or outcome.final:
            numbers.pop(0)
            if not numbers:
                del self._numbers[id(outcome.item)]
        return replace(outcome, item=number)
