"""The processes that come from a command: found as they appear, looked at now and then, and seen to their end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from tokenmill.doctor.watching import exits
from tokenmill.doctor.watching.processes import Process, Usage, usage_of
from tokenmill.system import procfs

RANGE = 512
"""Up to so many new numbers are looked at one by one; beyond that, listing all processes is cheaper."""

TRIES = 4
"""A number is given before its process can be seen: so often it is looked for."""

LISTING_SECONDS, BLIND_SECONDS = 1.0, 0.02
"""How often all processes are listed: to be sure, and where only that tells of new ones."""

SAMPLE_SECONDS = 0.2
DUTY = 400
"""Nothing is repeated before this many times what it took: a quarter of a per cent of one core."""

ADVANCE_SECONDS = 0.3
"""What looking at processes may take before that holds: short runs are looked at often enough to be measured."""

YOUNG_SECONDS = (0.03, 0.15)
CLOSELY_EVERY = 5
GROWING_SECONDS = 1.0
SHARED_BYTES = 32 << 20
"""Processes that hold less are not worth finding out how much of it they share."""


class Tree:
    """A command's process and all that come from it. Orphans are known by their new parent: us.

    Made before the command is started, so that nothing of it is taken for a stranger.
    """

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.alive: dict[int, Process] = {}
        self.seen = 0
        self.peak = 0
        self.most = 0
        self.limits: dict[str, int] = {}
        self.parents: set[int] = set()  # of workers that have ended
        self._us = os.getpid()
        self._ends = select.epoll()
        self._by_pidfd: dict[int, Process] = {}
        self._unattended: list[Process] = []
        self._thread_starts: dict[tuple[int, int], int] = {}
        self._counter = procfs.PidCounter()
        self._strangers = procfs.listing()
        self._awaited: dict[int, int] = {}
        self._last = self._counter.last()
        self._next_listing = self._next_sample = 0.0
        self._listing_seconds = LISTING_SECONDS
        self._samples = 0
        self._advance_seconds = ADVANCE_SECONDS
        self._next_grave = 0.0
        self._usage_seen: tuple[float, Usage] | None = None
        self._last_birth = 0.0
        self._gone: dict[int, int] = {}
        self._cpu_of_ended = 0.0
        self._young: list[tuple[float, Process]] = []

    def begin(self, pid: int, words: tuple[str, ...]) -> Process:
        """Watch the command's process, a child of ours, and all that come from it."""
        self.began = time.monotonic()
        if self._counter.last() == self._last:  # it has just given a number: some containers make the file up
            self._listing_seconds = BLIND_SECONDS
        seen = procfs.stat(pid)
        if seen is None:
            raise ProcessLookupError(pid)
        process = self._join(pid, seen, is_command=True)
        process.words = process.words or words  # it may have ended already
        return process

    def now(self) -> float:
        """Seconds since the watch began."""
        return time.monotonic() - self.began

    def wait(self, seconds: float) -> list[Process]:
        """Those that end within this time, as soon as one does."""
        ready = [self._by_pidfd[pidfd] for pidfd, _ in self._ends.poll(seconds)]
        gone = [process for process in self._unattended if not process.look()] if self._unattended else []
        return [self._end(process) for process in [*ready, *gone]]

    def find_new(self) -> list[Process]:
        """Those that were started since the last call."""
        last = self._counter.last()
        if last != self._last:
            fresh = range(self._last + 1, last + 1)
            self._last = last
            if 0 < len(fresh) <= RANGE:
                self._awaited |= dict.fromkeys(fresh, TRIES)
            else:
                self._next_listing = 0.0
        if time.monotonic() >= self._next_listing:
            self._list()
        if self._young:
            self._look_at_young()
        return self._join_awaited() if self._awaited else []

    def sample(self) -> bool:
        """Look at all, if it is time to; whether it was."""
        begun = time.monotonic()
        if begun < self._next_sample:
            return False
        self._samples += 1
        for process in self.alive.values():
            self._look(process)
        self._measure_one()
        self._note_peak()
        took = time.monotonic() - begun
        self._advance_seconds -= took
        self._next_sample = begun + (SAMPLE_SECONDS if self._advance_seconds > 0 else max(SAMPLE_SECONDS, DUTY * took))
        return True

    @property
    def is_growing(self) -> bool:
        """Whether a process was started not long ago, so that others may follow."""
        return self.now() - self._last_birth < GROWING_SECONDS

    @property
    def cpu_seconds(self) -> float:
        """The CPU time that all have used, as far as it was seen."""
        return self._cpu_of_ended + sum(process.cpu_seconds for process in self.alive.values())

    def close(self) -> None:
        """Give back what the system lent."""
        for pidfd in self._by_pidfd:
            os.close(pidfd)
        self._ends.close()
        self._counter.close()

    def _list(self) -> None:
        begun = time.monotonic()
        present = procfs.listing()
        self._awaited |= dict.fromkeys(present - self._strangers - self.alive.keys(), 1)
        self._strangers &= present
        self._gone = {pid: ticks for pid, ticks in self._gone.items() if pid in present}
        self._next_listing = begun + max(self._listing_seconds, DUTY * (time.monotonic() - begun))

    def _join_awaited(self) -> list[Process]:
        joined: list[Process] = []
        seen = {pid: found for pid in sorted(self._awaited) if (found := procfs.stat(pid)) is not None}
        self._awaited = {pid: tries - 1 for pid, tries in self._awaited.items() if tries > 1 and pid not in seen}
        while True:  # until no one of them has its parent among those that joined
            ours = [pid for pid in seen if self._is_ours(pid, seen[pid])]
            joined += [self._join(pid, seen.pop(pid)) for pid in ours]
            if not ours:
                self._strangers.update(seen)
                return joined

    def _is_ours(self, pid: int, seen: procfs.Stat) -> bool:
        if pid in self.alive or pid == self._us or self._gone.get(pid) == seen.start_ticks:
            return False
        return (seen.parent in self.alive or seen.parent == self._us) and not procfs.is_thread(pid)

    def _join(self, pid: int, seen: procfs.Stat, is_command: bool = False) -> Process:
        self._strangers.discard(pid)
        born = max(0.0, self.now() - procfs.seconds_since_start(seen.start_ticks))
        process = Process(pid, seen.parent, seen.start_ticks, born, is_command=is_command, forked=seen.forked)
        process.threads_of_parent = self._threads_before(process)
        process.look()
        self._look_closely(process)
        process.inherited = process.held if process.forked and not is_command else 0
        self.alive[pid] = process
        self.seen += 1
        self.most = max(self.most, len(self.alive))
        self._attend(process)
        self._last_birth = self.now()
        self._young += [(self.now() + delay, process) for delay in YOUNG_SECONDS]
        return process

    def _attend(self, process: Process) -> None:
        process.pidfd = exits.open_pidfd(process.pid)
        if process.pidfd is None:
            self._unattended.append(process)
        else:
            self._by_pidfd[process.pidfd] = process
            self._ends.register(process.pidfd, select.EPOLLIN)

    def _look_at_young(self) -> None:
        """Soon after its birth a process may run another program, and be another thing than it looked."""
        now = self.now()
        for due, process in self._young:
            if due <= now and process.ended is None and process.look():
                self._look_closely(process)
        self._young = [(due, process) for due, process in self._young if due > now and process.ended is None]

        self._note_peak()

    def _note_peak(self) -> None:
        self.peak = max(self.peak, sum(process.own for process in self.alive.values()))

    def _threads_before(self, child: Process) -> int | None:
        """How many threads the parent had before this child was started."""
        if child.parent not in self.alive:
            return None
        try:
            tasks = [int(name) for name in os.listdir(f"{procfs.PROC}/{child.parent}/task")]
        except OSError:
            return None
        return sum(task == child.parent or self._thread_start(child.parent, task) < child.start_ticks for task in tasks)

    def _thread_start(self, pid: int, task: int) -> int:
        key = (pid, task)
        if key not in self._thread_starts:
            seen = procfs.stat(pid, task)
            self._thread_starts[key] = seen.start_ticks if seen is not None else 1 << 62
        return self._thread_starts[key]

    def _look(self, process: Process) -> None:
        if process.look() and self._samples % CLOSELY_EVERY == 0:
            self._look_closely(process)

    def _look_closely(self, process: Process) -> None:
        process.look_closely()
        self.limits |= {name: min(value, self.limits.get(name, value)) for name, value in process.limits.items()}

    def _measure_one(self) -> None:
        """Each time another: it is too dear to do for all at once. Small ones are taken to be like each other."""
        large = [process for process in self.alive.values() if process.held > SHARED_BYTES]
        small = [process for process in self.alive.values() if process.inherited and process.held <= SHARED_BYTES]
        if len(large) > 1:
            large[self._samples % len(large)].measure_own()
        if small:
            one = small[self._samples % len(small)]
            one.measure_own()
            for process in small:
                if process.parent == one.parent:
                    process.inherited = min(process.inherited, one.inherited)

    def _end(self, process: Process) -> Process:
        process.ended = self.now()
        remains = procfs.stat(process.pid)
        if remains is not None and remains.start_ticks == process.start_ticks and remains.state == procfs.ZOMBIE:
            process.take_remains(remains)
        else:
            process.status = exits.status(process.pid, process.pidfd)
        with contextlib.suppress(ChildProcessError):  # what has become a child of ours is ours to collect
            os.waitpid(process.pid, os.WNOHANG)
        process.usage = self._usage(is_grave=process.signal != signal.SIGTERM and process.code is None)
        self.alive.pop(process.pid, None)
        if process.role == "worker":
            self.parents.add(process.parent)
        self._gone[process.pid] = process.start_ticks
        self._cpu_of_ended += process.cpu_seconds
        self._thread_starts = {key: ticks for key, ticks in self._thread_starts.items() if key[0] != process.pid}
        self._leave(process)
        return process

    def _leave(self, process: Process) -> None:
        if process.pidfd is None:
            self._unattended.remove(process)
        else:
            self._ends.unregister(process.pidfd)
            del self._by_pidfd[process.pidfd]
            os.close(process.pidfd)
            process.pidfd = None

    def _usage(self, is_grave: bool) -> Usage:
        """What the tree uses: looked at anew when somebody was killed, otherwise as it was a moment ago."""
        begun = time.monotonic()
        if is_grave and begun >= self._next_grave:
            for process in self.alive.values():
                process.look()
            self._note_peak()
            self._next_grave = begun + DUTY * (time.monotonic() - begun)
        if self._usage_seen is None or is_grave or begun > self._usage_seen[0] + SAMPLE_SECONDS:
            self._usage_seen = (begun, usage_of(list(self.alive.values())))
        return self._usage_seen[1]
