"""The processes that descend from a command: detects new ones, samples them, and records how they end."""

from __future__ import annotations

import contextlib
import os
import select
import time

from tokenmill.diagnosis.watching.processes import Process
from tokenmill.system import procfs

# Up to this many new pids are read one by one; beyond that, listing all processes is cheaper.
MAX_NEW_PIDS = 512
# The kernel assigns a pid before the process is visible, so a new pid is looked up this often.
LOOKUPS = 4
# All processes are listed this often, in case a new pid was missed.
LISTING_SECONDS = 1.0
# The same where the pid counter does not work, so that only listings reveal new processes.
BLIND_SECONDS = 0.02
SAMPLE_SECONDS = 0.2
# The same while processes start: a new process may call exec and change its role.
GROWING_SAMPLE_SECONDS = 0.04
# An operation repeats after this many times its duration at the earliest: at most 0.25 % of one core.
DUTY = 400
# The first samples ignore DUTY until they have used this much time, so that short runs are measured too.
STARTUP_BUDGET_SECONDS = 0.3
# Every this many samples, details are refreshed too.
DETAILS_EVERY = 5
GROWING_SECONDS = 1.0


class ProcessTree:
    """The command's process and its descendants. This process is the subreaper, so it is the parent of orphans.

    Create it before the command starts: every process that already exists is treated as unrelated.
    """

    def __init__(self) -> None:
        self.started_at = time.monotonic()
        self.alive: dict[int, Process] = {}
        self.total = 0
        self.peak_bytes = 0
        self.max_alive = 0
        self.limits: dict[str, int] = {}
        self.worker_parents: set[int] = set()  # parents of workers that have ended
        self._own_pid = os.getpid()
        self._epoll = select.epoll()
        self._by_pidfd: dict[int, Process] = {}
        self._counter = procfs.PidCounter()
        self._unrelated = procfs.listing()
        self._pending: dict[int, int] = {}
        self._last_pid = self._counter.last()
        self._next_listing = self._next_sample = 0.0
        self._listing_seconds = LISTING_SECONDS
        self._samples = 0
        self._startup_budget_seconds = STARTUP_BUDGET_SECONDS
        self._last_start = 0.0
        self._ended_ticks: dict[int, int] = {}
        self._ended_cpu_seconds = 0.0

    def start(self, pid: int, command: tuple[str, ...]) -> Process:
        """Starts to watch the command's process, a child of this process, and its descendants."""
        self.started_at = time.monotonic()
        if self._counter.last() == self._last_pid:  # must have changed; some containers fake the file
            self._listing_seconds = BLIND_SECONDS
        stat = procfs.stat(pid)
        if stat is None:
            raise ProcessLookupError(pid)
        process = self._add(pid, stat, is_command=True)
        process.command = process.command or command  # it may have ended already
        return process

    def now(self) -> float:
        """Returns the seconds since the watch began."""
        return time.monotonic() - self.started_at

    def wait(self, seconds: float) -> list[Process]:
        """Waits up to `seconds` for a process to end. Returns those that have ended."""
        ended = [self._by_pidfd[pidfd] for pidfd, _ in self._epoll.poll(seconds)]
        if len(self._by_pidfd) < len(self.alive):
            ended += [process for process in self.alive.values() if process.pidfd is None and not process.refresh()]
        return [self._end(process) for process in ended]

    def find_new(self) -> list[Process]:
        """Returns the processes that started since the last call."""
        last = self._counter.last()
        if last != self._last_pid:
            new_pids = range(self._last_pid + 1, last + 1)
            self._last_pid = last
            if 0 < len(new_pids) <= MAX_NEW_PIDS:
                self._pending |= dict.fromkeys(new_pids, LOOKUPS)
            else:
                self._next_listing = 0.0
        if time.monotonic() >= self._next_listing:
            self._list_processes()
        return self._add_pending() if self._pending else []

    def sample(self) -> bool:
        """Refreshes all processes if a sample is due. Returns whether it was."""
        started = time.monotonic()
        if started < self._next_sample:
            return False
        self._samples += 1
        for process in self.alive.values():
            if process.refresh() and self._samples % DETAILS_EVERY == 0:
                self._refresh_details(process)
        self.peak_bytes = max(self.peak_bytes, sum(process.own_bytes for process in self.alive.values()))
        took = time.monotonic() - started
        self._startup_budget_seconds -= took
        if self._startup_budget_seconds > 0:
            self._next_sample = started + (GROWING_SAMPLE_SECONDS if self.is_growing else SAMPLE_SECONDS)
        else:
            self._next_sample = started + max(SAMPLE_SECONDS, DUTY * took)
        return True

    @property
    def is_growing(self) -> bool:
        """Whether a process started recently, so that more may follow."""
        return self.now() - self._last_start < GROWING_SECONDS

    @property
    def cpu_seconds(self) -> float:
        """The observed CPU time of all processes, including ended ones."""
        return self._ended_cpu_seconds + sum(process.cpu_seconds for process in self.alive.values())

    def close(self) -> None:
        """Closes all file descriptors."""
        for pidfd in self._by_pidfd:
            os.close(pidfd)
        self._epoll.close()
        self._counter.close()

    def _list_processes(self) -> None:
        started = time.monotonic()
        present = procfs.listing()
        self._pending |= dict.fromkeys(present - self._unrelated - self.alive.keys(), 1)
        self._unrelated &= present
        self._ended_ticks = {pid: ticks for pid, ticks in self._ended_ticks.items() if pid in present}
        self._next_listing = started + max(self._listing_seconds, DUTY * (time.monotonic() - started))

    def _add_pending(self) -> list[Process]:
        added: list[Process] = []
        stats = {pid: stat for pid in sorted(self._pending) if (stat := procfs.stat(pid)) is not None}
        self._pending = {pid: lookups - 1 for pid, lookups in self._pending.items() if lookups > 1 and pid not in stats}
        while True:  # an added process may be the parent of another new one
            ours = [pid for pid in stats if self._is_ours(pid, stats[pid])]
            added += [self._add(pid, stats.pop(pid)) for pid in ours]
            if not ours:
                self._unrelated.update(stats)
                return added

    def _is_ours(self, pid: int, stat: procfs.Stat) -> bool:
        if pid in self.alive or pid == self._own_pid or self._ended_ticks.get(pid) == stat.start_ticks:
            return False
        return (stat.parent in self.alive or stat.parent == self._own_pid) and not procfs.is_thread(pid)

    def _add(self, pid: int, stat: procfs.Stat, is_command: bool = False) -> Process:
        self._unrelated.discard(pid)
        started_at = max(0.0, self.now() - procfs.seconds_since_start(stat.start_ticks))
        process = Process(pid, stat.parent, stat.start_ticks, started_at, is_command=is_command, forked=stat.forked)
        parent = self.alive.get(stat.parent)
        if parent is not None:  # a child begins in the control group of its parent now, and may end before a look
            parent.refresh_details()
            process.cgroup = parent.cgroup
        process.refresh()
        self._refresh_details(process)
        process.inherited_bytes = process.held_bytes if process.forked and not is_command else 0
        self.alive[pid] = process
        self.total += 1
        self.max_alive = max(self.max_alive, len(self.alive))
        self._register(process)
        self._last_start = self.now()
        self._next_sample = min(self._next_sample, time.monotonic() + GROWING_SAMPLE_SECONDS)
        return process

    def _register(self, process: Process) -> None:
        with contextlib.suppress(OSError):  # an old kernel, or too many open files: then it is polled
            process.pidfd = os.pidfd_open(process.pid)
            self._by_pidfd[process.pidfd] = process
            self._epoll.register(process.pidfd, select.EPOLLIN)

    def _refresh_details(self, process: Process) -> None:
        process.refresh_details()
        self.limits |= {name: min(value, self.limits.get(name, value)) for name, value in process.limits.items()}

    def _end(self, process: Process) -> Process:
        process.ended_at = self.now()
        process.read_end()
        with contextlib.suppress(ChildProcessError):  # only children, including adopted orphans, can be reaped
            os.waitpid(process.pid, os.WNOHANG)
        self.alive.pop(process.pid, None)
        if process.role == "worker":
            self.worker_parents.add(process.parent)
        self._ended_ticks[process.pid] = process.start_ticks
        self._ended_cpu_seconds += process.cpu_seconds
        if process.pidfd is not None:
            self._epoll.unregister(process.pidfd)
            del self._by_pidfd[process.pidfd]
            os.close(process.pidfd)
            process.pidfd = None
        return process
