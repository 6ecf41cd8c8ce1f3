"""Determines what ended a process: from its exit status and the kernel's OOM counters and log."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from typing import Literal

import msgspec

from tokenmill.doctor.watching.processes import Process, Role, Usage
from tokenmill.humanize import Readable, signal_name, size
from tokenmill.system import cgroups, machine

Killer = Literal["itself", "kernel", "crash", "limit", "parent", "outside", "doctor", "unknown"]

CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP}
LIMITS = {signal.SIGXCPU: "the limit of CPU time was reached", signal.SIGXFSZ: "the limit of a file's size was reached"}
ENDED_BY_PARENT = ", as a parent sends it that ends its workers"
REQUESTS = {
    signal.SIGTERM: ENDED_BY_PARENT,
    signal.SIGINT: ENDED_BY_PARENT,
    signal.SIGHUP: ENDED_BY_PARENT,
    signal.SIGPIPE: ": its reader went away",
}
ALARMS = {signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF}
KERNEL_LOG = "/dev/kmsg"
RECORD_BYTES = 8192
KILLED = re.compile(rb"Killed process (\d+) .*?anon-rss:(\d+)kB(?:.*?shmem-rss:(\d+)kB)?")


class Death(Readable, msgspec.Struct, frozen=True):
    """A process that did not succeed. `killer` is what ended it; `why` describes it.

    `threads_of_parent` is the number of threads that its parent had when it started the process.
    """

    pid: int
    name: str
    role: Role
    parent: int
    exit_code: int | None
    signal: str | None
    killer: Killer
    why: str
    seconds: float
    after_seconds: float
    peak_bytes: int | None
    tree_bytes: int
    tree_processes: int
    workers: int
    worker_bytes: int
    largest_worker_bytes: int
    limit_bytes: int | None
    forked: bool
    threads_of_parent: int | None


class DeathExaminer:
    """Determines the cause of each death. Remembers the previous values of the OOM counters."""

    def __init__(self) -> None:
        self._cgroup_kills: dict[cgroups.Membership, int | None] = {}
        self._machine_kills = machine.kernel_oom_kills()
        self._log = KernelLog()

    def track(self, process: Process) -> None:
        """Records the OOM counter of a live process's cgroup."""
        if process.cgroup not in self._cgroup_kills:
            self._cgroup_kills[process.cgroup] = cgroups.kills(process.cgroup)

    def examine(self, process: Process) -> Death | None:
        """Returns the death of a process, or None if it succeeded.

        A helper program that returns a nonzero exit code does not count as a death.
        """
        is_helper = process.role == "service" or (process.role == "program" and not process.is_python)
        if process.exit_code == 0 or (process.exit_code is not None and is_helper):
            return None
        held_bytes = self._log.killed(process.pid)
        was_killed = process.exit_code is None and process.signal in (signal.SIGKILL, None)
        if was_killed and self._out_of_memory(process, held_bytes is not None):
            limit = cgroups.limit(process.cgroup)
            why = "the kernel, out of memory" + (f" (the limit is {size(limit[1])})" if limit else "")
            return _death(process, "kernel", why, limit[1] if limit else machine.memory_bytes(), held_bytes)
        if process.status is None and process.role != "worker":
            return None
        killer, why = _killer_by_status(process)
        return _death(process, killer, why, None, None)

    def close(self) -> None:
        """Closes the kernel log."""
        self._log.close()

    def _out_of_memory(self, process: Process, is_logged: bool) -> bool:
        """Returns whether an OOM counter has risen since the last death that it explained."""
        before, now = self._cgroup_kills.get(process.cgroup), cgroups.kills(process.cgroup)
        if before is not None and now is not None:
            self._cgroup_kills[process.cgroup] = min(before + 1, now)
            return now > before or is_logged
        before, now = self._machine_kills, machine.kernel_oom_kills()
        self._machine_kills = now
        return is_logged or (before is not None and now is not None and now > before)


class KernelLog:
    """Reads the kernel log from now on, where this user may, for processes that the kernel killed."""

    def __init__(self) -> None:
        self._killed: dict[int, int] = {}
        self._file: int | None = None
        with contextlib.suppress(OSError):  # most users may not read it
            self._file = os.open(KERNEL_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)

    def killed(self, pid: int) -> int | None:
        """Returns the memory that a process held when the OOM killer chose it; None if the log does not name it."""
        self._read()
        return self._killed.pop(pid, None)

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read(self) -> None:
        while self._file is not None:
            try:
                record = os.read(self._file, RECORD_BYTES)
            except BrokenPipeError:  # records were overwritten before they were read
                continue
            except OSError:
                return
            if match := KILLED.search(record):
                self._killed[int(match[1])] = (int(match[2]) + int(match[3] or 0)) * 1024


def _killer_by_status(process: Process) -> tuple[Killer, str]:
    number = process.signal
    if number is None:
        why = "the reason is not known: before Linux 6.15 only the parent process gets it"
        return ("unknown", why) if process.exit_code is None else ("itself", f"exit code {process.exit_code}")
    if number in CRASHES:
        return "crash", f"{signal_name(number)}: {signal.strsignal(number)}"
    if number in LIMITS:
        return "limit", f"{signal_name(number)}: {LIMITS[signal.Signals(number)]}"
    if number in ALARMS:
        return "itself", f"{signal_name(number)}: an alarm that the function set"
    if number in REQUESTS and not process.is_command:
        return "parent", f"{signal_name(number)}{REQUESTS[signal.Signals(number)]}"
    return "outside", f"{signal_name(number)} from outside"


def _death(process: Process, killer: Killer, why: str, limit_bytes: int | None, held_bytes: int | None) -> Death:
    usage = process.usage or Usage(0, 0, 0, 0, 0)
    return Death(
        pid=process.pid,
        name=process.name,
        role=process.role,
        parent=process.parent,
        exit_code=process.exit_code,
        signal=None if process.signal is None else signal_name(process.signal),
        killer=killer,
        why=why,
        seconds=round(process.seconds or 0.0, 3),
        after_seconds=round(process.ended_at or 0.0, 3),
        peak_bytes=max(process.peak_bytes, held_bytes or 0) or None,
        tree_bytes=usage.bytes,
        tree_processes=usage.processes,
        workers=usage.workers,
        worker_bytes=usage.worker_bytes,
        largest_worker_bytes=usage.largest_worker_bytes,
        limit_bytes=limit_bytes,
        forked=process.forked,
        threads_of_parent=process.threads_of_parent,
    )
