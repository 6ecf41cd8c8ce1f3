"""Worker processes on this machine: started clean, reused and supervised.

Workers come from the fork server, never from the calling process: a process that may run threads is never forked, and
the user's main module is never imported again. A death costs a retry of the item that the worker was on; the items
that it had prefetched go back to the queue. A stalled worker is stopped. If all workers together exceed the memory
budget, the largest is stopped. After a death for lack of memory, the run continues with one worker less.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

from tokenmill.executors.forkserver import ForkServer
from tokenmill.executors.forkserver_main import Preload
from tokenmill.executors.outcomes import (
    DEFAULT_POLICY,
    Attempt,
    Capacity,
    Cause,
    Died,
    ExitReport,
    Item,
    Outcome,
    RetryPolicy,
    Value,
    Worker,
)
from tokenmill.executors.worker_process import WorkerProcess
from tokenmill.system import machine

# Seconds between two checks of the busy workers.
CHECK_SECONDS = 0.2

# Maximum of what counts between two checks: a suspended machine or process is no fault of a worker.
MAX_CHECK_SECONDS = 1.0


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


@dataclass(frozen=True, slots=True)
class ActiveRun:
    """A function, its retry policy, its items, and the workers that run it."""

    function: Any
    policy: RetryPolicy
    queue: Queue
    team: list[WorkerProcess]

    @property
    def busy(self) -> list[WorkerProcess]:
        """The workers that hold items."""
        return [worker for worker in self.team if worker.items]

    def least_loaded(self) -> WorkerProcess | None:
        """The worker with the fewest items, of those that can take one more."""
        free = [worker for worker in self.team if worker.usable and worker.load <= self.policy.prefetch]
        return min(free, key=lambda worker: worker.load, default=None)


class LocalExecutor:
    """Runs functions in processes of this machine, which have the modules of `preload` before they get work.

    Create it early: the modules are loaded in the background, and `start` then takes milliseconds. On Linux the
    processes end with the thread that created the executor, so create and use it in one thread.
    """

    def __init__(self, preload: Preload = ()) -> None:
        self._preload = preload
        self._forkserver = ForkServer(preload)
        self._workers: list[WorkerProcess] = []
        self._worker_bytes: int | None = None
        self._memory_bytes: int | None = None
        self._checked = time.monotonic()
        self._oom = _OomKills()

    def start(
        self,
        workers: int,
        worker_bytes: int | None = None,
        memory_bytes: int | None = None,
        most_workers: int | None = None,  # noqa: ARG002 - no further machine can join
    ) -> Self:
        """Start workers (see Pool.start)."""
        self._worker_bytes, self._memory_bytes = worker_bytes, memory_bytes
        for worker in self._workers:
            worker.max_bytes = worker_bytes
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
        """The process ids of the workers."""
        return [worker.pid for worker in self._workers]

    @property
    def workers(self) -> int:
        """Number of workers."""
        return len(self._workers)

    @property
    def waiting(self) -> int:
        """Number of workers whose requests a server has just refused because there are too many."""
        return sum(worker.is_refused for worker in self._workers)

    @property
    def nodes(self) -> list[str]:
        """Empty: all workers are on this machine."""
        return []

    @property
    def room(self) -> Capacity:
        """The capacity of this machine."""
        return this_machine()

    def run(
        self, function: Callable[[Item], Value], items: Iterable[Item], policy: RetryPolicy = DEFAULT_POLICY
    ) -> Iterator[Outcome[Item, Value]]:
        """Yield outcomes in order of completion; an item whose worker dies is retried as the policy says."""
        run = self.begin(function, items, policy)
        while self.hand_out(run) and not policy.should_stop():
            yield from self.collect(run)

    def begin(
        self, function: Callable[[Item], Value], items: Iterable[Item], policy: RetryPolicy = DEFAULT_POLICY
    ) -> ActiveRun:
        """Begin a run step by step: call `hand_out`, then `collect`, and repeat.

        `items` may be exhausted now and have further items later.
        """
        self._checked = time.monotonic()
        return ActiveRun(function, policy, Queue(items), self._team(function, policy))

    def hand_out(self, run: ActiveRun) -> bool:
        """Give items to the workers that can take some; return whether any worker is busy."""
        while (worker := run.least_loaded()) and (attempt := run.queue.next()) is not None:
            worker.give(attempt)
        return bool(run.busy)

    def collect(self, run: ActiveRun, seconds: float = CHECK_SECONDS) -> Iterator[Outcome[Any, Any]]:
        """Yield outcomes, and check the busy workers. Waits at most `seconds` for the first outcome."""
        busy = {worker.connection.fileno(): worker for worker in run.busy}
        poll = select.poll()
        for descriptor in busy:
            poll.register(descriptor, select.POLLIN)
        ready = {descriptor for descriptor, _ in poll.poll(1000 * min(seconds, CHECK_SECONDS))}
        self._check(busy.values())
        for descriptor, worker in busy.items():
            if descriptor in ready or worker.unkillable:
                outcome = self._outcome(worker, run)
                if outcome is not None:
                    yield outcome

    def _team(self, function: Any, policy: RetryPolicy) -> list[WorkerProcess]:
        """The workers of a run, which have received the function."""
        for worker in self._workers[policy.workers :] if policy.workers else []:
            # An unused worker is replaced if it has worked before: the others may need its memory.
            self._usable(worker, function, policy, replace_it=worker.resident_bytes > 0)
        team = [self._usable(worker, function, policy) for worker in self._workers[: policy.workers]]
        for worker in team:
            worker.send_function(function, policy.prefetch)
        return team

    def _outcome(self, worker: WorkerProcess, run: ActiveRun) -> Outcome[Any, Any] | None:
        """The outcome of one of the worker's items; None if it only says that it is free for another one.

        Requeues items, and replaces or drops the worker as needed.
        """
        received = worker.receive()
        if received is None and worker.alive:
            return None
        attempt, outcome = received or self._death(worker, run.policy, alone=len(run.team) == 1)
        if isinstance(outcome, Died) and not outcome.final:
            run.queue.retry(attempt.after(outcome.end))
        if worker.finished:
            run.queue.put_back(worker.items.values())
            worker.items = {}
        if isinstance(outcome, Died) and outcome.workers < len(self._workers):
            worker.close()
            self._workers.remove(worker)
            run.team.remove(worker)
        elif not worker.items:
            run.team[run.team.index(worker)] = self._usable(worker, run.function, run.policy)
        return outcome

    def _new_worker(self) -> WorkerProcess:
        if not self._forkserver.alive:
            self._forkserver.close()
            self._forkserver = ForkServer(self._preload)
        return WorkerProcess(self._forkserver, self._worker_bytes)

    def _check(self, busy: Iterable[WorkerProcess]) -> None:
        """Check the busy workers, unless the last check was a moment ago."""
        seconds = time.monotonic() - self._checked
        if seconds < CHECK_SECONDS:
            return
        self._checked += seconds
        held = {worker: worker.check(min(seconds, MAX_CHECK_SECONDS)) for worker in busy}
        if self._memory_bytes is not None and sum(held.values()) > self._memory_bytes:
            max(held, key=held.__getitem__).stop(Cause.MEMORY, self._memory_bytes)

    def _death(self, worker: WorkerProcess, policy: RetryPolicy, *, alone: bool) -> tuple[Attempt, Died[Any]]:
        end, peak = worker.reap()
        end = self._oom.attributed(end)
        blamed = worker.blamed()
        attempt = worker.take(blamed.number)
        fewer = end.cause is Cause.MEMORY and not alone
        return attempt, Died(
            item=attempt.item,
            end=end,
            worker=Worker(worker.pid, peak),
            seconds=blamed.seconds,
            attempt=attempt.number,
            final=attempt.after(end).is_exhausted(policy),
            output_tail=worker.output_tail(),
            note=blamed.note,
            workers=len(self._workers) - fewer,
        )

    def _usable(
        self, worker: WorkerProcess, function: Any, policy: RetryPolicy, *, replace_it: bool = False
    ) -> WorkerProcess:
        """The worker itself, or a new one if it is dead, too large, or still busy for an abandoned run."""
        if worker.usable and not worker.items and not replace_it:
            return worker
        worker.close()
        fresh = self._new_worker()
        fresh.send_function(function, policy.prefetch)
        self._workers[self._workers.index(worker)] = fresh
        return fresh


def this_machine() -> Capacity:
    """The capacity that this process may use."""
    cores = machine.cores()
    return Capacity(cores, cores, machine.default_memory_budget() // cores, machine.memory_bytes())


class _OomKills:
    """Counts the kills of the kernel's OOM killer, to attribute deaths to it."""

    def __init__(self) -> None:
        self._seen = machine.oom_kills()
        self._unexplained = 0

    def attributed(self, end: ExitReport) -> ExitReport:
        """The end of a worker, attributed to the kernel if it has killed more processes than deaths were reported."""
        now = machine.oom_kills()
        self._unexplained += max(after - before for after, before in zip(now, self._seen, strict=True))
        self._seen = now
        if end.cause is not Cause.KILLED or not self._unexplained:
            return end
        self._unexplained -= 1
        return replace(end, cause=Cause.MEMORY, by_kernel=True, limit=machine.memory_limit_bytes())
