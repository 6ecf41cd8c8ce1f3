"""Worker processes on this machine, started clean, reused and supervised.

Workers come from a nursery (see there), never from the calling process: nothing is forked from a process that may run
threads, and the user's main module is never imported again. One item is in flight per worker, so a death costs that
item's retry and nothing else. A worker that gets stuck is stopped, and so is the largest one when all of them together
hold more memory than they may; after a death for lack of memory, the work goes on with one worker less.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from tokenmill import machine
from tokenmill.executors.outcomes import USUAL, Cause, Died, Done, End, Failed, Item, Outcome, Terms, Value, Worker
from tokenmill.executors.processes import Nursery, WorkerProcess

LOOK_SECONDS = 0.2
"""How often busy workers are looked at."""

MOST_LOOK_SECONDS = 1.0
"""What counts at most between two looks: a machine that slept, or a run that was stopped, is no worker's fault."""


@dataclass(frozen=True, slots=True)
class _Try:
    """An item that was given out: how many attempts came to an end in its workers' own deaths, and by other hands."""

    item: Any
    deaths: int = 0
    kills: int = 0

    def after(self, cause: Cause) -> _Try:
        if cause is Cause.KILLED:
            return replace(self, kills=self.kills + 1)
        return replace(self, deaths=self.deaths + 1)

    def is_hopeless(self, terms: Terms) -> bool:
        return self.deaths >= terms.deaths or self.kills >= terms.kills


class LocalExecutor:
    """Runs functions in processes of this machine, which load the modules of `preload` before there is work for them.

    Make it early: the loading goes on while the caller finds out what is to be done, and `start` then takes no time. On
    Linux the processes end with the thread that made the executor, so make and use it in one thread.
    """

    def __init__(self, preload: tuple[str, ...] = ()) -> None:
        self._preload = preload
        self._nursery = Nursery(preload)
        self._workers: list[WorkerProcess] = []
        self._worker_bytes: int | None = None
        self._memory_bytes: int | None = None
        self._looked = time.monotonic()
        self._oom = _OomKills()

    def start(self, workers: int, worker_bytes: int | None = None, memory_bytes: int | None = None) -> Self:
        """Have this many workers. One that holds more than `worker_bytes` is replaced between items.

        If all of them hold more than `memory_bytes` together, the largest is stopped.
        """
        self._worker_bytes, self._memory_bytes = worker_bytes, memory_bytes
        self._workers += [self._new_worker() for _ in range(workers - len(self._workers))]
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._nursery.close()
        for worker in self._workers:
            worker.alive = False
            worker.close()

    @property
    def pids(self) -> list[int]:
        """The processes at work."""
        return [worker.pid for worker in self._workers]

    def run(
        self, function: Callable[[Item], Value], items: Iterable[Item], terms: Terms = USUAL
    ) -> Iterator[Outcome[Item, Value]]:
        """Yield outcomes as they come; an item whose worker dies is tried again, as often as the terms say."""
        waiting = iter(items)
        again: deque[_Try] = deque()
        busy: dict[Connection, WorkerProcess] = {}
        self._looked = time.monotonic()
        for worker in self._workers[terms.workers :] if terms.workers else []:
            self._refreshed(worker, function, anew=worker.resident_bytes > 0)  # what it holds, the others may need
        idle = [self._refreshed(worker, function) for worker in reversed(self._workers[: terms.workers])]
        for worker in idle:
            worker.send_function(function)
        while True:
            while idle and (job := _next_job(again, waiting)) is not None:
                worker = idle.pop()
                worker.start_item(job, job.item)
                busy[worker.connection] = worker
            if not busy:
                return
            ready = wait(list(busy), LOOK_SECONDS)
            self._look(busy.values())
            ready += [connection for connection, worker in busy.items() if worker.lost and connection not in ready]
            for connection in ready:
                worker = busy.pop(connection)  # type: ignore[call-overload]
                outcome = self._collect(worker, terms, alone=not busy and not idle)
                if isinstance(outcome, Died) and not outcome.final:
                    again.append(worker.item.after(outcome.end.cause))
                if isinstance(outcome, Died) and outcome.workers < len(self._workers):
                    self._dismiss(worker)
                else:
                    idle.append(self._refreshed(worker, function))
                yield outcome

    def _new_worker(self) -> WorkerProcess:
        if not self._nursery.alive:
            self._nursery.close()
            self._nursery = Nursery(self._preload)
        return WorkerProcess(self._nursery)

    def _look(self, busy: Iterable[WorkerProcess]) -> None:
        """See how the busy workers are, if the last look was some time ago."""
        seconds = time.monotonic() - self._looked
        if seconds < LOOK_SECONDS:
            return
        self._looked += seconds
        held = {worker: worker.look(min(seconds, MOST_LOOK_SECONDS)) for worker in busy}
        if self._memory_bytes is not None and sum(held.values()) > self._memory_bytes:
            max(held, key=held.__getitem__).stop(Cause.MEMORY, self._memory_bytes)

    def _collect(self, worker: WorkerProcess, terms: Terms, *, alone: bool) -> Outcome[Any, Any]:
        answer = worker.receive()
        item = worker.item.item
        if answer is None:
            return self._death(worker, terms, alone=alone)
        seconds, peak, worker.resident_bytes, kind, *rest = answer
        who = Worker(worker.pid, peak)
        if kind == "done":
            return Done(item, rest[0], who, seconds)
        error, message, explained, trace = rest
        return Failed(item, error, message, explained, trace, who, worker.note())

    def _death(self, worker: WorkerProcess, terms: Terms, *, alone: bool) -> Died[Any]:
        end, peak = worker.reap()
        end = self._oom.blamed(end)
        tried: _Try = worker.item
        fewer = end.cause is Cause.MEMORY and not alone
        return Died(
            item=tried.item,
            end=end,
            worker=Worker(worker.pid, peak),
            seconds=time.monotonic() - worker.started,
            attempt=tried.deaths + tried.kills + 1,
            final=tried.after(end.cause).is_hopeless(terms),
            last_words=worker.last_words(),
            note=worker.note(),
            workers=len(self._workers) - fewer,
        )

    def _refreshed(self, worker: WorkerProcess, function: Any, *, anew: bool = False) -> WorkerProcess:
        """The worker itself, or a new one if it is dead, over its share of memory, or busy for a run that was left."""
        over = self._worker_bytes is not None and worker.resident_bytes > self._worker_bytes
        if worker.usable and not over and not anew:
            return worker
        worker.close()
        fresh = self._new_worker()
        fresh.send_function(function)
        self._workers[self._workers.index(worker)] = fresh
        return fresh

    def _dismiss(self, worker: WorkerProcess) -> None:
        worker.close()
        self._workers.remove(worker)


class _OomKills:
    """Tells which deaths are the kernel's doing, for lack of memory, by counting its kills."""

    def __init__(self) -> None:
        self._seen = machine.oom_kills()
        self._unexplained = 0

    def blamed(self, end: End) -> End:
        """The end, with the kernel named if it has killed more processes than were told before."""
        now = machine.oom_kills()
        self._unexplained += max(after - before for after, before in zip(now, self._seen, strict=True))
        self._seen = now
        if end.cause is not Cause.KILLED or not self._unexplained:
            return end
        self._unexplained -= 1
        return replace(end, cause=Cause.MEMORY, by_kernel=True, limit=machine.memory_limit_bytes())


def _next_job(again: deque[_Try], waiting: Iterator[Any]) -> _Try | None:
    if again:
        return again.popleft()
    for item in waiting:
        return _Try(item)
    return None
