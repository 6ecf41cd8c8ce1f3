"""The processes that descend from a command: detects new ones, samples them, and records how they end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from tokenmill.doctor.watching import exits
from tokenmill.doctor.watching.processes import Process, Usage, usage_of
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
# An operation repeats after this many times its duration at the earliest: at most 0.25 % of one core.
DUTY = 400
# The first samples ignore DUTY until they have used this much time, so that short runs are measured too.
STARTUP_BUDGET_SECONDS = 0.3
# A new process is refreshed at these ages.
YOUNG_SECONDS = (0.03, 0.15)
# Every this many samples, details are refreshed too.
DETAILS_EVERY = 5
GROWING_SECONDS = 1.0
# The shared memory of smaller processes is not measured one by one.
SHARED_BYTES = 32 << 20


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
        self._without_pidfd: list[Process] = []
        self._thread_starts: dict[tuple[int, int], int] = {}
        self._counter = procfs.PidCounter()
        self._unrelated = procfs.listing()
        self._pending: dict[int, int] = {}
        self._last_pid = self._counter.last()
        self._next_listing = self._next_sample = 0.0
        self._listing_seconds = LISTING_SECONDS
        self._samples = 0
        self._startup_budget_seconds = STARTUP_BUDGET_SECONDS
        self._next_kill_refresh = 0.0
        self._last_usage: tuple[float, Usage] | None = None
        self._last_start = 0.0
        self._ended_ticks: dict[int, int] = {}
        self._ended_cpu_seconds = 0.0
        self._young: list[tuple[float, Process]] = []

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
        ready = [self._by_pidfd[pidfd] for pidfd, _ in self._epoll.poll(seconds)]
        vanished = [process for process in self._without_pidfd if not process.refresh()] if self._without_pidfd else []
        return [self._end(process) for process in [*ready, *vanished]]

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
        if self._young:
            self._refresh_young()
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
        self._measure_one()
        self._update_peak()
        took = time.monotonic() - started
        self._startup_budget_seconds -= took
        pause = 0.0 if self._startup_budget_seconds > 0 else DUTY * took
        self._next_sample = started + max(SAMPLE_SECONDS, pause)
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
        process.threads_of_parent = self._parent_threads(process)
        if stat.parent in self.alive:  # a child begins in the control group of its parent, and may end before a look
            process.cgroup = self.alive[stat.parent].cgroup
        process.refresh()
        self._refresh_details(process)
        process.inherited_bytes = process.held_bytes if process.forked and not is_command else 0
        self.alive[pid] = process
        self.total += 1
        self.max_alive = max(self.max_alive, len(self.alive))
        self._register(process)
        self._last_start = self.now()
        self._young += [(self.now() + delay, process) for delay in YOUNG_SECONDS]
        return process

    def _register(self, process: Process) -> None:
        process.pidfd = exits.open_pidfd(process.pid)
        if process.pidfd is None:
            self._without_pidfd.append(process)
        else:
            self._by_pidfd[process.pidfd] = process
            self._epoll.register(process.pidfd, select.EPOLLIN)

    def _refresh_young(self) -> None:
        """Refreshes new processes: soon after its start a process may call exec and change its role."""
        now = self.now()
        for due, process in self._young:
            if due <= now and process.ended_at is None and process.refresh():
                self._refresh_details(process)
        self._young = [(due, process) for due, process in self._young if due > now and process.ended_at is None]
        self._update_peak()

    def _update_peak(self) -> None:
        self.peak_bytes = max(self.peak_bytes, sum(process.own_bytes for process in self.alive.values()))

    def _parent_threads(self, child: Process) -> int | None:
        """Returns how many threads the parent had when it started this child."""
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
            stat = procfs.stat(pid, task)
            self._thread_starts[key] = stat.start_ticks if stat is not None else 1 << 62
        return self._thread_starts[key]

    def _refresh_details(self, process: Process) -> None:
        process.refresh_details()
        self.limits |= {name: min(value, self.limits.get(name, value)) for name, value in process.limits.items()}

    def _measure_one(self) -> None:
        """Measures the shared memory of one process per sample, because measuring all of them is expensive.

        Small processes of the same parent are assumed to share the same amount.
        """
        large = [process for process in self.alive.values() if process.held_bytes > SHARED_BYTES]
        small = [
            process for process in self.alive.values() if process.inherited_bytes and process.held_bytes <= SHARED_BYTES
        ]
        if len(large) > 1:
            large[self._samples % len(large)].measure_shared()
        if small:
            sampled = small[self._samples % len(small)]
            sampled.measure_shared()
            for process in small:
                if process.parent == sampled.parent:
                    process.inherited_bytes = min(process.inherited_bytes, sampled.inherited_bytes)

    def _end(self, process: Process) -> Process:
        process.ended_at = self.now()
        stat = procfs.stat(process.pid)
        if stat is not None and stat.start_ticks == process.start_ticks and stat.state == procfs.ZOMBIE:
            process.read_zombie(stat)
        else:
            process.read_reaped(exits.status(process.pid, process.pidfd))
        with contextlib.suppress(ChildProcessError):  # only children, including adopted orphans, can be reaped
            os.waitpid(process.pid, os.WNOHANG)
        process.usage = self._usage(was_killed=process.signal != signal.SIGTERM and process.exit_code is None)
        self.alive.pop(process.pid, None)
        if process.role == "worker":
            self.worker_parents.add(process.parent)
        self._ended_ticks[process.pid] = process.start_ticks
        self._ended_cpu_seconds += process.cpu_seconds
        self._thread_starts = {key: ticks for key, ticks in self._thread_starts.items() if key[0] != process.pid}
        self._unregister(process)
        return process

    def _unregister(self, process: Process) -> None:
        if process.pidfd is None:
            self._without_pidfd.remove(process)
        else:
            self._epoll.unregister(process.pidfd)
            del self._by_pidfd[process.pidfd]
            os.close(process.pidfd)
            process.pidfd = None

    def _usage(self, was_killed: bool) -> Usage:
        """Returns the usage of the tree: refreshed if a process was killed, otherwise at most SAMPLE_SECONDS old."""
        started = time.monotonic()
        if was_killed and started >= self._next_kill_refresh:
            for process in self.alive.values():
                process.refresh()
            self._update_peak()
            self._next_kill_refresh = started + DUTY * (time.monotonic() - started)
        if self._last_usage is None or was_killed or started > self._last_usage[0] + SAMPLE_SECONDS:
            self._last_usage = (started, usage_of(list(self.alive.values())))
        return self._last_usage[1]
