"""Signs that a command will not end by itself: nothing moves any more, or its workers die one after another."""

from __future__ import annotations

import collections
from dataclasses import dataclass

from tokenmill.doctor.waits import Wait, wait_of
from tokenmill.doctor.watching.processes import Process
from tokenmill.doctor.watching.tree import Tree

IDLE_SHARE = 0.05
"""The share of a core that a tree uses which only waits: parents of a pool look after it ten times a second."""

AWAY_SECONDS = 5.0
"""A pause in the watch itself, as when the terminal stops the command and us: it says nothing."""

POOL_DIED = b" (_handle_results):"
"""Said of the thread that takes a pool's results; without it the pool runs in circles, and only workers count."""

CYCLE_DEATHS = 8
SHORT_LIFE_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Waiting:
    """A process and what it waits for."""

    process: Process
    wait: Wait

    @property
    def is_deadlocked(self) -> bool:
        """Whether it waits for a lock that was held when it was forked, as far as can be seen from outside."""
        return self.process.forked and (self.process.threads_of_parent or 0) > 1 and self.wait.for_private_lock


@dataclass(frozen=True, slots=True)
class Hang:
    """Nothing moved for so many seconds, and each process waits for something."""

    seconds: float
    waits: tuple[Waiting, ...]


class Stillness:
    """Notices when the whole tree has done next to nothing for a while, and has or had workers."""

    def __init__(self, hang_seconds: float) -> None:
        self._hang_seconds = hang_seconds
        self._last = 0.0
        self._since: float | None = None
        self._used: collections.deque[tuple[float, float]] = collections.deque()  # in the last `hang_seconds`

    def look(self, tree: Tree, is_pool_dead: bool) -> Hang | None:
        """The hang, if there is one now; to be asked after each sample. `is_pool_dead`: POOL_DIED was said."""
        now, used = tree.now(), tree.cpu_seconds
        if is_pool_dead:
            used = sum(process.cpu_seconds for process in tree.alive.values() if process.role == "worker")
        was_away = now - self._last > max(AWAY_SECONDS, self._hang_seconds / 2)
        self._last = now
        if was_away or not _had_workers(tree):
            self._used.clear()
        self._used.append((now, used))
        while len(self._used) > 1 and self._used[1][0] <= now - self._hang_seconds:
            self._used.popleft()
        start, before = self._used[0]
        if now - start < self._hang_seconds or used - before > IDLE_SHARE * self._hang_seconds:
            self._since = None
            return None
        self._since = start if self._since is None else self._since
        waits = tuple(Waiting(process, wait_of(process.pid)) for process in tree.alive.values())
        return Hang(now - self._since, waits)


def _had_workers(tree: Tree) -> bool:
    """Whether somebody may wait for workers: also for those that are gone."""
    pythons = sum(process.is_python and process.role != "service" for process in tree.alive.values())
    return pythons > 1 or not tree.parents.isdisjoint(tree.alive)


class Cycle:
    """Notices a parent that starts new workers for ever because each dies at once."""

    def __init__(self) -> None:
        self._deaths: dict[int, int] = {}

    def note(self, process: Process, most: int) -> int | None:
        """How many have died in a row, once that is so many that it will go on; to be told of each end."""
        if process.role != "worker" or process.status is None:
            return None
        failed = bool(process.code) and (process.seconds or 0.0) < SHORT_LIFE_SECONDS
        deaths = self._deaths.get(process.parent, 0) + 1 if failed else 0
        self._deaths[process.parent] = deaths
        return deaths if deaths >= CYCLE_DEATHS + 2 * most else None
