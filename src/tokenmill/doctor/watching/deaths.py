"""What ended a process, found out in the moment of its death: by its exit status and by the kernel's counters."""

from __future__ import annotations

import signal
from typing import Literal

import msgspec

from tokenmill.doctor.watching.kernel_log import KernelLog
from tokenmill.doctor.watching.processes import Process, Role, Usage
from tokenmill.humanize import signal_name, size
from tokenmill.system import cgroups, machine

Killer = Literal["itself", "kernel", "crash", "limit", "parent", "outside", "doctor", "unknown"]

CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP}
LIMITS = {signal.SIGXCPU: "the limit of CPU time was reached", signal.SIGXFSZ: "the limit of a file's size was reached"}
ENDED = ", as a parent sends it that ends its workers"
REQUESTS = {
    signal.SIGTERM: ENDED,
    signal.SIGINT: ENDED,
    signal.SIGHUP: ENDED,
    signal.SIGPIPE: ": its reader went away",
}
ALARMS = {signal.SIGALRM, signal.SIGVTALRM, signal.SIGPROF}


class Death(msgspec.Struct, frozen=True):
    """A process that did not end well. `killer` is who ended it; `why` says it in words.

    `threads_of_parent` is how many threads its parent had when it was started.
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


class Coroner:
    """Says of each death what it was. Knows the counters as they were before."""

    def __init__(self) -> None:
        self._kills: dict[cgroups.Membership, int | None] = {}
        self._machine_kills = machine.kernel_oom_kills()
        self._log = KernelLog()

    def meet(self, process: Process) -> None:
        """Note how the counters stand for a process that lives."""
        if process.cgroup not in self._kills:
            self._kills[process.cgroup] = cgroups.kills(process.cgroup)

    def examine(self, process: Process) -> Death | None:
        """The death of a process; None if it ended well, or is a program that said no with its exit code."""
        is_helper = process.role == "service" or (process.role == "program" and not process.is_python)
        if process.code == 0 or (process.code is not None and is_helper):
            return None
        number = process.signal
        held = self._log.killed(process.pid)
        if process.code is None and number in (signal.SIGKILL, None) and self._out_of_memory(process, held is not None):
            limit = cgroups.limit(process.cgroup)
            why = "the kernel, out of memory" + (f" (the limit is {size(limit[1])})" if limit else "")
            return _death(process, "kernel", why, limit[1] if limit else machine.memory_bytes(), held)
        if process.status is None and process.role != "worker":
            return None
        killer, why = _by_status(process)
        return _death(process, killer, why, None, None)

    def close(self) -> None:
        """Give back what the system lent."""
        self._log.close()

    def _out_of_memory(self, process: Process, is_logged: bool) -> bool:
        """Whether a counter has moved since the last death that it was moved by."""
        before, now = self._kills.get(process.cgroup), cgroups.kills(process.cgroup)
        if before is not None and now is not None:
            self._kills[process.cgroup] = min(before + 1, now)
            return now > before or is_logged
        before, now = self._machine_kills, machine.kernel_oom_kills()
        self._machine_kills = now
        return is_logged or (before is not None and now is not None and now > before)


def _by_status(process: Process) -> tuple[Killer, str]:
    number = process.signal
    if number is None:
        unknown = "it is not known what: before Linux 6.15 only its parent is told"
        return ("unknown", unknown) if process.code is None else ("itself", f"exit code {process.code}")
    if number in CRASHES:
        return "crash", f"{signal_name(number)}: {signal.strsignal(number)}"
    if number in LIMITS:
        return "limit", f"{signal_name(number)}: {LIMITS[signal.Signals(number)]}"
    if number in ALARMS:
        return "itself", f"{signal_name(number)}: an alarm that the function set"
    if number in REQUESTS and not process.is_command:
        return "parent", f"{signal_name(number)}{REQUESTS[signal.Signals(number)]}"
    return "outside", f"{signal_name(number)} from outside"


def _death(process: Process, killer: Killer, why: str, limit: int | None, held: int | None) -> Death:
    usage = process.usage or Usage(0, 0, 0, 0, 0)
    return Death(
        pid=process.pid,
        name=process.name,
        role=process.role,
        parent=process.parent,
        exit_code=process.code,
        signal=None if process.signal is None else signal_name(process.signal),
        killer=killer,
        why=why,
        seconds=round(process.seconds or 0.0, 3),
        after_seconds=round(process.ended or 0.0, 3),
        peak_bytes=max(process.peak, held or 0) or None,
        tree_bytes=usage.bytes,
        tree_processes=usage.processes,
        workers=usage.workers,
        worker_bytes=usage.worker_bytes,
        largest_worker_bytes=usage.largest_worker_bytes,
        limit_bytes=limit,
        forked=process.forked,
        threads_of_parent=process.threads_of_parent,
    )
