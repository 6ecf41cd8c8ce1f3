"""Detects that a command will not end by itself, and stops it.

Either nothing moves any more, or its workers die one after another.
"""

from __future__ import annotations

import collections
import contextlib
import os
import signal
import time
from dataclasses import dataclass

from tokenmill.diagnosis.waits import Wait, wait_of
from tokenmill.diagnosis.watching import messages
from tokenmill.diagnosis.watching.processes import Process
from tokenmill.diagnosis.watching.stderr import StderrRelay
from tokenmill.diagnosis.watching.tree import ProcessTree
from tokenmill.system import procfs

# A tree that only waits uses up to this fraction of a core: the parent of a pool polls it ten times a second.
IDLE_FRACTION = 0.05
# A longer gap between samples means that the doctor itself was stopped, so the idle time does not count.
PAUSE_SECONDS = 5.0
# Appears when a pool's result thread dies. The pool then spins, so only the CPU time of workers counts.
POOL_DIED = b" (_handle_results):"
# This many early deaths in a row, plus two per process, show an endless restart.
RESTART_DEATHS = 8
# A worker that fails within this time counts as an early death.
SHORT_LIFE_SECONDS = 30.0
# Only this many processes print their stack: the others are probably at the same line.
MAX_STACKS = 8
# A process has this long to print its stack.
STACK_SECONDS = 2.0
END_SECONDS = 5.0
ROLE_ORDER = {"worker": 0, "command": 1, "program": 2, "service": 3}


@dataclass(frozen=True, slots=True)
class WaitingProcess:
    """A process and what it waits for. `threads_at_fork` counts the threads of its parent, 0 if that is irrelevant."""

    process: Process
    wait: Wait
    threads_at_fork: int

    @property
    def is_deadlocked(self) -> bool:
        """Whether it waits for a lock that was held at the fork, judging from outside."""
        return self.threads_at_fork > 1


@dataclass(frozen=True, slots=True)
class Hang:
    """No process has moved for `seconds`. `waits` has one entry per process."""

    seconds: float
    waits: tuple[WaitingProcess, ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """Where a process was when it was stopped."""

    pid: int
    failure: messages.Failure


class HangDetector:
    """Detects that the whole tree used almost no CPU for a while, and has or had workers."""

    def __init__(self, hang_seconds: float) -> None:
        self._hang_seconds = hang_seconds
        self._last_check = 0.0
        self._hang_start: float | None = None
        self._cpu_samples: collections.deque[tuple[float, float]] = collections.deque()  # in the last `hang_seconds`

    def check(self, tree: ProcessTree, is_pool_dead: bool) -> Hang | None:
        """Returns the current hang, or None. Call it after each sample.

        `is_pool_dead`: the command's stderr contains POOL_DIED.
        """
        now, cpu_seconds = tree.now(), tree.cpu_seconds
        if is_pool_dead:
            cpu_seconds = sum(process.cpu_seconds for process in tree.alive.values() if process.role == "worker")
        was_paused = now - self._last_check > max(PAUSE_SECONDS, self._hang_seconds / 2)
        self._last_check = now
        if was_paused or not _had_workers(tree):
            self._cpu_samples.clear()
        self._cpu_samples.append((now, cpu_seconds))
        while len(self._cpu_samples) > 1 and self._cpu_samples[1][0] <= now - self._hang_seconds:
            self._cpu_samples.popleft()
        start, cpu_before = self._cpu_samples[0]
        if now - start < self._hang_seconds or cpu_seconds - cpu_before > IDLE_FRACTION * self._hang_seconds:
            self._hang_start = None
            return None
        self._hang_start = start if self._hang_start is None else self._hang_start
        return Hang(now - self._hang_start, tuple(map(_waiting, tree.alive.values())))


def _had_workers(tree: ProcessTree) -> bool:
    """Returns whether a process may wait for workers, including workers that have ended."""
    pythons = sum(process.is_python and process.role != "service" for process in tree.alive.values())
    return pythons > 1 or not tree.worker_parents.isdisjoint(tree.alive)


def _waiting(process: Process) -> WaitingProcess:
    wait, threads = wait_of(process.pid), 0
    if process.forked and wait.for_private_lock:
        with contextlib.suppress(OSError):
            tasks = [int(name) for name in os.listdir(f"{procfs.PROC}/{process.parent}/task")]
            stats = [procfs.stat(process.parent, task) for task in tasks]
            threads = sum(stat is not None and stat.start_ticks < process.start_ticks for stat in stats)
    return WaitingProcess(process, wait, threads)


class RestartDetector:
    """Detects a parent that restarts workers endlessly because each of them dies at once."""

    def __init__(self) -> None:
        self._deaths: dict[int, int] = {}

    def record(self, process: Process, max_processes: int) -> int | None:
        """Records an ended process. Returns the number of deaths in a row once they are certain to continue."""
        if process.role != "worker" or process.status is None:
            return None
        failed = bool(process.exit_code) and process.seconds < SHORT_LIFE_SECONDS
        deaths = self._deaths.get(process.parent, 0) + 1 if failed else 0
        self._deaths[process.parent] = deaths
        return deaths if deaths >= RESTART_DEATHS + 2 * max_processes else None


def stop(tree: ProcessTree, relay: StderrRelay) -> tuple[list[Stack], list[Process]]:
    """Makes the first MAX_STACKS Python processes print their stacks, then kills all processes.

    Returns the stacks, and the ended processes.
    """
    by_role = sorted(tree.alive.values(), key=lambda process: ROLE_ORDER[process.role])
    for process in by_role:  # keeps parents from starting more workers
        _send(process, signal.SIGSTOP)
    ended: list[Process] = []
    stacks = []
    for process in [process for process in by_role if process.is_python and process.role != "service"][:MAX_STACKS]:
        before = len(_fatal_errors(relay))
        with contextlib.suppress(OSError):
            procfs.dump_no_core(process.pid)
        _send(process, signal.SIGABRT)
        _send(process, signal.SIGCONT)
        end = time.monotonic() + STACK_SECONDS
        while process.pid in tree.alive and time.monotonic() < end:
            ended += tree.wait(0.05)
        stacks += [Stack(process.pid, failure) for failure in _fatal_errors(relay)[before:][-1:]]
    end = time.monotonic() + END_SECONDS
    while tree.alive and time.monotonic() < end:
        for process in tree.alive.values():
            _send(process, signal.SIGKILL)
        ended += tree.wait(0.05)
        tree.find_new()
    return stacks, ended


def _fatal_errors(relay: StderrRelay) -> list[messages.Failure]:
    end = time.monotonic() + STACK_SECONDS
    relay.drain(lambda: time.monotonic() > end)
    return messages.fatal_errors(relay.text())


def _send(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        if process.pidfd is not None:
            signal.pidfd_send_signal(process.pidfd, number)
        else:
            os.kill(process.pid, number)
