"""Worker processes on this machine, started clean, reused and supervised.

Workers come from the forkserver, never from the calling process: nothing is forked from a process that may run
threads, and the user's main module is never imported again. A death costs a retry of the item that the worker was at,
and nothing else: what it had been given ahead goes back to the queue. A worker that gets stuck is stopped, and so is
the largest one when all of them together hold more memory than they may; after a death for lack of memory, the work
goes on with one worker less.
"""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from tokenmill.executors.outcomes import (
    DEFAULT_POLICY,
    Capacity,
    Cause,
    Died,
    Done,
    ExitReport,
    Failed,
    Item,
    Outcome,
    RetryPolicy,
    Value,
    Worker,
)
from tokenmill.executors.retries import Attempt, Queue
from tokenmill.executors.worker_process import ForkServer, WorkerProcess
from tokenmill.system import machine

LOOK_SECONDS = 0.2
"""How often busy workers are looked at."""

MAX_LOOK_SECONDS = 1.0
"""What counts at most between two looks: a machine that slept, or a run that was stopped, is no worker's fault."""


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """What is being done: a function, on which terms, with which items, by which workers."""

    function: Any
    terms: RetryPolicy
    queue: Queue
    team: list[WorkerProcess]

    @property
    def busy(self) -> list[WorkerProcess]:
        """The workers that have something to do."""
        return [worker for worker in self.team if worker.items]


class LocalExecutor:
    """Runs functions in processes of this machine, which load the modules of `preload` before there is work for them.

    Make it early: the loading goes on while the caller finds out what is to be done, and `start` then takes no time. On
    Linux the processes end with the thread that made the executor, so make and use it in one thread.
    """

    def __init__(self, preload: tuple[str, ...] = ()) -> None:
        self._preload = preload
        self._forkserver = ForkServer(preload)
        self._workers: list[WorkerProcess] = []
        self._worker_bytes: int | None = None
        self._memory_bytes: int | None = None
        self._looked = time.monotonic()
        self._oom = _OomKills()

    def start(
        self,
        workers: int,
        worker_bytes: int | None = None,
        memory_bytes: int | None = None,
        most_workers: int | None = None,  # noqa: ARG002 - nothing joins a machine
    ) -> Self:
        """Have this many workers. One that holds more than `worker_bytes` is replaced between items.

        If all of them hold more than `memory_bytes` together, the largest is stopped.
        """
        self._worker_bytes, self._memory_bytes = worker_bytes, memory_bytes
        self._workers += [self._new_worker() for _ in range(workers - len(self._workers))]
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._forkserver.close()
        for worker in self._workers:
            worker.alive = False
            worker.close()

    @property
    def pids(self) -> list[int]:
        """The processes at work."""
        return [worker.pid for worker in self._workers]

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self._workers)

    @property
    def nodes(self) -> list[str]:
        """None: all of them are here."""
        return []

    @property
    def room(self) -> Capacity:
        """This machine, as far as it may be used."""
        return this_machine()

    def run(
        self, function: Callable[[Item], Value], items: Iterable[Item], terms: RetryPolicy = DEFAULT_POLICY
    ) -> Iterator[Outcome[Item, Value]]:
        """Yield outcomes as they come; an item whose worker dies is tried again, as often as the terms say."""
        shift = self.begin(function, items, terms)
        while self.hand_out(shift) and not terms.enough():
            yield from self.collect(shift)

    def begin(
        self, function: Callable[[Item], Value], items: Iterable[Item], terms: RetryPolicy = DEFAULT_POLICY
    ) -> ActiveRun:
        """The same step by step: `hand_out`, then `collect`, and again. `items` may have none now, and some later."""
        self._looked = time.monotonic()
        return ActiveRun(function, terms, Queue(items), self._team(function, terms))

    def hand_out(self, shift: ActiveRun) -> bool:
        """Give items to the workers that can have some; whether any worker is busy."""
        while (free := self._freest(shift)) and (tried := shift.queue.next()) is not None:
            free.give(tried)
        return bool(shift.busy)

    def collect(self, shift: ActiveRun, seconds: float = LOOK_SECONDS) -> Iterator[Outcome[Any, Any]]:
        """Yield what came of items, and see how the busy workers are; waits so long for the first at most."""
        busy = {worker.connection.fileno(): worker for worker in shift.busy}
        ready = _readable(busy, seconds)
        self._look(busy.values())
        for descriptor, worker in busy.items():
            if descriptor in ready or worker.lost:
                yield self._settled(worker, shift)

    def _team(self, function: Any, terms: RetryPolicy) -> list[WorkerProcess]:
        """The workers of a run, which know the function."""
        for worker in self._workers[terms.workers :] if terms.workers else []:
            self._refreshed(worker, function, terms, anew=worker.resident_bytes > 0)  # what it holds, others may need
        team = [self._refreshed(worker, function, terms) for worker in self._workers[: terms.workers]]
        for worker in team:
            worker.send_function(function, terms.ahead)
        return team

    def _freest(self, shift: ActiveRun) -> WorkerProcess | None:
        """The worker that has fewest items, of those that may have one more."""
        room = [worker for worker in shift.team if len(worker.items) <= shift.terms.ahead]
        fit = [worker for worker in room if worker.fit and not self._is_over(worker)]
        return min(fit, key=lambda worker: len(worker.items)) if fit else None

    def _settled(self, worker: WorkerProcess, shift: ActiveRun) -> Outcome[Any, Any]:
        """What came of one of the worker's items, after what follows from it for the others and for the worker."""
        tried, outcome = self._received(worker, shift.terms, alone=len(shift.team) == 1)
        if isinstance(outcome, Died) and not outcome.final:
            shift.queue.try_again(tried.after(outcome.end.cause))
        if worker.finished:
            shift.queue.take_back(worker.items.values())
            worker.items = {}
        if isinstance(outcome, Died) and outcome.workers < len(self._workers):
            self._dismiss(worker)
            shift.team.remove(worker)
        elif not worker.items:
            shift.team[shift.team.index(worker)] = self._refreshed(worker, shift.function, shift.terms)
        return outcome

    def _new_worker(self) -> WorkerProcess:
        if not self._forkserver.alive:
            self._forkserver.close()
            self._forkserver = ForkServer(self._preload)
        return WorkerProcess(self._forkserver)

    def _look(self, busy: Iterable[WorkerProcess]) -> None:
        """See how the busy workers are, if the last look was some time ago."""
        seconds = time.monotonic() - self._looked
        if seconds < LOOK_SECONDS:
            return
        self._looked += seconds
        held = {worker: worker.look(min(seconds, MAX_LOOK_SECONDS)) for worker in busy}
        if self._memory_bytes is not None and sum(held.values()) > self._memory_bytes:
            max(held, key=held.__getitem__).stop(Cause.MEMORY, self._memory_bytes)

    def _received(self, worker: WorkerProcess, terms: RetryPolicy, *, alone: bool) -> tuple[Attempt, Outcome[Any, Any]]:
        """What came of one of the items that the worker has, which it now has no more."""
        answer = worker.receive()
        if answer is None:
            return self._death(worker, terms, alone=alone)
        number, seconds, peak, worker.resident_bytes, kind, *rest = answer
        tried, who = worker.take(number), Worker(worker.pid, peak)
        if kind == "done":
            return tried, Done(tried.item, rest[0], who, seconds)
        error, message, explained, trace, note, exit_code = rest
        return tried, Failed(tried.item, error, message, explained, trace, who, note, exit_code)

    def _death(self, worker: WorkerProcess, terms: RetryPolicy, *, alone: bool) -> tuple[Attempt, Died[Any]]:
        end, peak = worker.reap()
        end = self._oom.blamed(end)
        blamed = worker.blamed()
        tried = worker.take(blamed.number)
        fewer = end.cause is Cause.MEMORY and not alone
        return tried, Died(
            item=tried.item,
            end=end,
            worker=Worker(worker.pid, peak),
            seconds=blamed.seconds,
            attempt=tried.attempt,
            final=tried.after(end.cause).is_hopeless(terms),
            last_words=worker.last_words(),
            note=blamed.note,
            workers=len(self._workers) - fewer,
        )

    def _is_over(self, worker: WorkerProcess) -> bool:
        return self._worker_bytes is not None and worker.resident_bytes > self._worker_bytes

    def _refreshed(
        self, worker: WorkerProcess, function: Any, terms: RetryPolicy, *, anew: bool = False
    ) -> WorkerProcess:
        """The worker itself, or a new one if it is dead, over its share of memory, or busy for a run that was left."""
        if worker.fit and not worker.items and not self._is_over(worker) and not anew:
            return worker
        worker.close()
        fresh = self._new_worker()
        fresh.send_function(function, terms.ahead)
        self._workers[self._workers.index(worker)] = fresh
        return fresh

    def _dismiss(self, worker: WorkerProcess) -> None:
        worker.close()
        self._workers.remove(worker)


def this_machine() -> Capacity:
    """What this process may use."""
    cores = machine.cores()
    return Capacity(cores, cores, machine.default_memory_budget() // cores, machine.memory_bytes())


class _OomKills:
    """Tells which deaths are the kernel's doing, for lack of memory, by counting its kills."""

    def __init__(self) -> None:
        self._seen = machine.oom_kills()
        self._unexplained = 0

    def blamed(self, end: ExitReport) -> ExitReport:
        """The end, with the kernel named if it has killed more processes than were told before."""
        now = machine.oom_kills()
        self._unexplained += max(after - before for after, before in zip(now, self._seen, strict=True))
        self._seen = now
        if end.cause is not Cause.KILLED or not self._unexplained:
            return end
        self._unexplained -= 1
        return replace(end, cause=Cause.MEMORY, by_kernel=True, limit=machine.memory_limit_bytes())


def _readable(descriptors: Iterable[int], seconds: float) -> set[int]:
    """Those from which something can be read, or nothing any more; waits a while for the first."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, _ in poll.poll(1000 * min(seconds, LOOK_SECONDS))}
