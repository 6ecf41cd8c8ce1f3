"""Worker processes on this machine, started clean, reused and supervised.

Workers come from a nursery (see there), never from the calling process: nothing is forked from a process that may run
threads, and the user's main module is never imported again. One item is in flight per worker, so a death costs that
item's retry and nothing else.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, Self

from tokenmill import machine
from tokenmill.executors.outcomes import Died, Done, Failed, Item, Outcome, Value, Worker
from tokenmill.executors.processes import KILLED, Nursery, WorkerProcess

ATTEMPTS = 3
LOOK_SECONDS = 0.5
"""How often the memory of busy workers is looked at."""


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
        self._oom_kills = machine.kernel_oom_kills()

    def start(self, workers: int, worker_bytes: int | None = None) -> Self:
        """Have this many workers; one that holds more than `worker_bytes` is replaced between items."""
        self._worker_bytes = worker_bytes
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

    def run(self, function: Callable[[Item], Value], items: Iterable[Item]) -> Iterator[Outcome[Item, Value]]:
        """Yield outcomes as they come; an item whose worker dies is tried again, three times in all."""
        waiting = iter(items)
        again: deque[tuple[Any, int]] = deque()
        busy: dict[Connection, WorkerProcess] = {}
        looked = time.monotonic()
        idle = [self._refreshed(worker, function) for worker in reversed(self._workers)]
        for worker in idle:
            worker.send_function(function)
        while True:
            while idle and (job := _next_job(again, waiting)) is not None:
                worker = idle.pop()
                worker.start_item(*job)
                busy[worker.connection] = worker
            if not busy:
                return
            ready = wait(list(busy), LOOK_SECONDS)
            if time.monotonic() - looked >= LOOK_SECONDS:
                for worker in busy.values():
                    worker.look()
                looked = time.monotonic()
            for connection in ready:
                worker = busy.pop(connection)  # type: ignore[call-overload]
                outcome = self._collect(worker)
                if isinstance(outcome, Died) and not outcome.final:
                    again.append((outcome.item, outcome.attempt + 1))
                idle.append(self._refreshed(worker, function))
                yield outcome

    def _new_worker(self) -> WorkerProcess:
        if not self._nursery.alive:
            self._nursery.close()
            self._nursery = Nursery(self._preload)
        return WorkerProcess(self._nursery)

    def _collect(self, worker: WorkerProcess) -> Outcome[Any, Any]:
        answer = worker.receive()
        if answer is None:
            return self._death(worker)
        seconds, peak, worker.resident_bytes, kind, *rest = answer
        who = Worker(worker.pid, peak)
        if kind == "done":
            return Done(worker.item, rest[0], who, seconds)
        error, message, explained, trace = rest
        return Failed(worker.item, error, message, explained, trace, who)

    def _death(self, worker: WorkerProcess) -> Died[Any]:
        exit_code, peak = worker.reap()
        kills = machine.kernel_oom_kills()
        out_of_memory = exit_code == KILLED and kills is not None and kills > (self._oom_kills or 0)
        self._oom_kills = kills
        return Died(
            item=worker.item,
            exit_code=exit_code,
            worker=Worker(worker.pid, peak),
            seconds=time.monotonic() - worker.started,
            attempt=worker.attempt,
            final=worker.attempt >= ATTEMPTS,
            kernel_out_of_memory=out_of_memory,
            last_words=worker.last_words(),
        )

    def _refreshed(self, worker: WorkerProcess, function: Any) -> WorkerProcess:
        """The worker itself, or a new one if it is dead, over its share of memory, or busy for a run that was left."""
        over = self._worker_bytes is not None and worker.resident_bytes > self._worker_bytes
        if worker.alive and not worker.busy and not over:
            return worker
        worker.close()
        fresh = self._new_worker()
        fresh.send_function(function)
        self._workers[self._workers.index(worker)] = fresh
        return fresh


def _next_job(again: deque[tuple[Any, int]], waiting: Iterator[Any]) -> tuple[Any, int] | None:
    if again:
        return again.popleft()
    for item in waiting:
        return item, 1
    return None
