"""Detects that a command will not end by itself: nothing moves any more, or its workers die one after another."""

from __future__ import annotations

import collections
from dataclasses import dataclass

from tokenmill.doctor.waits import Wait, wait_of
from tokenmill.doctor.watching.processes import Process
from tokenmill.doctor.watching.tree import ProcessTree

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


@dataclass(frozen=True, slots=True)
class WaitingProcess:
    """A process and what it waits for."""

    process: Process
    wait: Wait

    @property
    def is_deadlocked(self) -> bool:
        """Whether it waits for a lock that was held at the fork, judging from outside."""
        return self.process.forked and (self.process.threads_of_parent or 0) > 1 and self.wait.for_private_lock


@dataclass(frozen=True, slots=True)
class Hang:
    """No process has moved for `seconds`. `waits` has one entry per process."""

    seconds: float
    waits: tuple[WaitingProcess, ...]


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
        waits = tuple(WaitingProcess(process, wait_of(process.pid)) for process in tree.alive.values())
        return Hang(now - self._hang_start, waits)


def _had_workers(tree: ProcessTree) -> bool:
    """Returns whether a process may wait for workers, including workers that have ended."""
    pythons = sum(process.is_python and process.role != "service" for process in tree.alive.values())
    return pythons > 1 or not tree.worker_parents.isdisjoint(tree.alive)


class RestartDetector:
    """Detects a parent that restarts workers endlessly because each of them dies at once."""

    def __init__(self) -> None:
        self._deaths: dict[int, int] = {}

    def record(self, process: Process, max_processes: int) -> int | None:
        """Records an ended process. Returns the number of deaths in a row once they are certain to continue."""
        if process.role != "worker" or process.status is None:
            return None
        failed = bool(process.exit_code) and (process.seconds or 0.0) < SHORT_LIFE_SECONDS
        deaths = self._deaths.get(process.parent, 0) + 1 if failed else 0
        self._deaths[process.parent] = deaths
        return deaths if deaths >= RESTART_DEATHS + 2 * max_processes else None
