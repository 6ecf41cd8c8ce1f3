"""Determines what ended a process, from its exit status and the kernel's OOM counters, and which death is the cause."""

from __future__ import annotations

import signal
from typing import Literal

import msgspec

from tokenmill.diagnosis.watching.processes import Process, Role
from tokenmill.humanize import Readable, signal_name, size
from tokenmill.system import cgroups, machine

Killer = Literal["itself", "kernel", "crash", "parent", "outside", "doctor", "unknown"]

CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE, signal.SIGSYS, signal.SIGTRAP}
# Signals by which a parent ends its workers.
BY_PARENT = {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE}
# Killers that are never intended, whatever the parent reports afterwards.
SEVERE = ("kernel", "crash")
# The pipes of a parent close before its end is observed, so its workers may seem to have ended first.
TOLERANCE_SECONDS = 1.0
NOT_KNOWN = "the reason is not known: before Linux 6.15 only the parent process gets it"


class Death(Readable, msgspec.Struct, frozen=True):
    """A process that did not succeed. `killer` is what ended it; `why` describes it.

    `workers` were alive in its last moment.
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
    workers: int
    limit_bytes: int | None

    @property
    def matters(self) -> bool:
        """Whether it is worth a line while the command goes on."""
        if self.role == "command" or self.killer in ("parent", "doctor"):
            return False
        return self.killer in SEVERE or self.role == "worker"


class DeathExaminer:
    """Determines the cause of each death. Remembers the previous values of the OOM counters."""

    def __init__(self) -> None:
        self._cgroup_kills: dict[cgroups.Membership, int | None] = {}
        self._machine_kills = machine.kernel_oom_kills()

    def track(self, process: Process) -> None:
        """Records the OOM counter of a live process's cgroup."""
        if process.cgroup not in self._cgroup_kills:
            self._cgroup_kills[process.cgroup] = cgroups.kills(process.cgroup)

    def examine(self, process: Process, workers: int) -> Death | None:
        """Returns the death of a process among so many workers, or None if it succeeded.

        A helper program that returns a nonzero exit code does not count as a death.
        """
        is_helper = process.role == "service" or (process.role == "program" and not process.is_python)
        if process.exit_code == 0 or (process.exit_code is not None and is_helper):
            return None
        was_killed = process.exit_code is None and process.signal in (signal.SIGKILL, None)
        if was_killed and self._out_of_memory(process):
            limit = cgroups.limit(process.cgroup)
            why = "the kernel, out of memory" + (f" (the limit is {size(limit[1])})" if limit else "")
            return _death(process, workers, "kernel", why, limit[1] if limit else machine.memory_bytes())
        if process.status is None and process.role != "worker":
            return None
        return _death(process, workers, *_killer_by_status(process))

    def _out_of_memory(self, process: Process) -> bool:
        """Returns whether an OOM counter has risen since the last death that it explained."""
        before, now = self._cgroup_kills.get(process.cgroup), cgroups.kills(process.cgroup)
        if before is not None and now is not None:
            self._cgroup_kills[process.cgroup] = min(before + 1, now)
            return now > before
        before, now = self._machine_kills, machine.kernel_oom_kills()
        self._machine_kills = now
        return before is not None and now is not None and now > before


def _killer_by_status(process: Process) -> tuple[Killer, str]:
    number = process.signal
    if number is None:
        return ("unknown", NOT_KNOWN) if process.exit_code is None else ("itself", f"exit code {process.exit_code}")
    if number in CRASHES:
        return "crash", f"{signal_name(number)}: {signal.strsignal(number)}"
    if number in BY_PARENT and not process.is_command:
        return "parent", f"{signal_name(number)}, as when a parent ends its workers"
    return "outside", f"{signal_name(number)} from outside"


def _death(process: Process, workers: int, killer: Killer, why: str, limit_bytes: int | None = None) -> Death:
    return Death(
        pid=process.pid,
        name=process.name,
        role=process.role,
        parent=process.parent,
        exit_code=process.exit_code,
        signal=None if process.signal is None else signal_name(process.signal),
        killer=killer,
        why=why,
        seconds=round(process.seconds, 3),
        after_seconds=round(process.ended_at or 0.0, 3),
        peak_bytes=process.peak_bytes or None,
        workers=workers,
        limit_bytes=limit_bytes,
    )


def root_cause(deaths: list[Death]) -> Death | None:
    """Returns the root cause: the most severe death, and of these the first. The command's own death comes last."""
    return min((death for death in deaths if _is_cause(death, deaths)), key=_order, default=None)


def _order(death: Death) -> tuple[int, bool, int]:
    """Sort key. Of processes that the kernel killed for lack of memory, the largest comes first, even the command."""
    if death.killer == "kernel":
        return 0, False, -(death.peak_bytes or 0)
    rank = 0 if death.killer in SEVERE else 2 if death.killer == "parent" else 1
    return rank, death.role == "command", 0


def _is_cause(death: Death, deaths: list[Death]) -> bool:
    if death.role == "command" or death.killer == "doctor":
        return death.signal is not None and death.killer != "doctor"
    return not _is_intended(death, deaths) and not _follows_parent(death, deaths)


def _is_intended(death: Death, deaths: list[Death]) -> bool:
    """Returns whether a parent ended it on purpose: a parent that ends its workers ends all of them."""
    if death.killer != "parent":
        return False
    siblings = [other for other in deaths if other.parent == death.parent and other.killer == "parent"]
    return death.role != "worker" or len(siblings) > 1 or death.workers < 2


def _follows_parent(death: Death, deaths: list[Death]) -> bool:
    """Returns whether a worker raised an exception because its parent had been killed."""
    parents = [other for other in deaths if other.pid == death.parent and other.signal is not None]
    is_after = any(parent.after_seconds < death.after_seconds + TOLERANCE_SECONDS for parent in parents)
    return death.exit_code == 1 and is_after
