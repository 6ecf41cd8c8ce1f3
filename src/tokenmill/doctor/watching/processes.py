"""One watched process: its last observed state and how it ended."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from tokenmill.doctor.watching import exits
from tokenmill.system import cgroups, procfs

Role = Literal["command", "worker", "service", "program"]

NAME_CHARACTERS = 60
SERVICES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "multiprocess.resource_tracker")
# A multithreaded process that holds less than this fraction of the largest worker's memory manages workers.
MANAGER_FRACTION = 0.25
POOL_ARGUMENTS = ("--multiprocessing-fork", "multiprocessing.spawn", "multiprocess.spawn")


@dataclass(frozen=True, slots=True)
class Usage:
    """What the tree used when one of its processes ended, including that process. Managers are not workers."""

    processes: int
    bytes: int
    workers: int
    worker_bytes: int
    largest_worker_bytes: int


@dataclass(slots=True)
class Process:
    """A process of the tree. Times are seconds since the watch began.

    `held_bytes` excludes mapped files, which the kernel can drop at any time. `inherited_bytes` is the part of it that
    is counted for another process of the tree. `peak_bytes` is the maximum of `held_bytes`.
    """

    pid: int
    parent: int
    start_ticks: int
    started_at: float
    is_command: bool = False
    role: Role = "program"
    pidfd: int | None = None
    forked: bool = False
    threads_of_parent: int | None = None
    command: tuple[str, ...] = ()
    program: str = ""
    state: str = "R"
    threads: int = 1
    cpu_seconds: float = 0.0
    held_bytes: int = 0
    inherited_bytes: int = 0
    peak_bytes: int = 0
    file_bytes: int = 0
    cgroup: cgroups.Membership = ()
    limits: dict[str, int] = field(default_factory=dict)
    ended_at: float | None = None
    status: int | None = None
    usage: Usage | None = None
    refreshes: int = 0

    @property
    def own_bytes(self) -> int:
        """The memory that counts for this process."""
        return max(0, self.held_bytes - self.inherited_bytes)

    @property
    def is_python(self) -> bool:
        """Whether it runs Python."""
        return self.program.startswith(("python", "pypy"))

    @property
    def is_spawned(self) -> bool:
        """Whether multiprocessing started it as a new interpreter, for example for a pool."""
        return any(argument in word for argument in POOL_ARGUMENTS for word in self.command)

    @property
    def name(self) -> str:
        """Its command line, shortened for a table."""
        if not self.command:
            return self.program or "unknown"
        if self.is_spawned:
            return "spawned by multiprocessing"
        line = " ".join([os.path.basename(self.command[0]), *self.command[1:]])
        line = " ".join(line.split())
        return line if len(line) <= NAME_CHARACTERS else f"{line[: NAME_CHARACTERS - 3]}..."

    @property
    def seconds(self) -> float | None:
        """Its lifetime, None while it runs."""
        return None if self.ended_at is None else max(0.0, self.ended_at - self.started_at)

    @property
    def exit_code(self) -> int | None:
        """Its exit code, None if it runs or a signal ended it."""
        return None if self.status is None else exits.code_and_signal(self.status)[0]

    @property
    def signal(self) -> int | None:
        """The signal that ended it, None if no signal did."""
        return None if self.status is None else exits.code_and_signal(self.status)[1]

    def refresh(self) -> bool:
        """Reads its current state. Returns False if it has ended."""
        stat = procfs.stat(self.pid)
        if stat is None or stat.start_ticks != self.start_ticks or stat.state == procfs.ZOMBIE:
            return False
        called_exec = self.forked and not stat.forked
        self.state, self.forked = stat.state, stat.forked
        if called_exec:
            self.inherited_bytes = 0
            self.refresh_details()
        self.threads, self.cpu_seconds = stat.threads, stat.cpu_seconds
        status = procfs.status(self.pid)
        self.held_bytes = procfs.held_bytes(status)
        self.file_bytes = max(self.file_bytes, procfs.number(status, b"RssFile") * 1024)
        peak = procfs.number(status, b"VmHWM") * 1024 - self.file_bytes
        self.peak_bytes = max(self.peak_bytes, self.held_bytes, peak)
        self.refreshes += 1
        return True

    def refresh_details(self) -> None:
        """Reads what rarely changes: command line, limits, cgroup and role."""
        self.command = procfs.command_line(self.pid) or self.command
        self.program = procfs.program(self.pid) or self.program
        self.limits = procfs.limits(self.pid) or self.limits
        self.cgroup = cgroups.membership(self.pid) or self.cgroup
        self.role = self.infer_role()

    def read_zombie(self, stat: procfs.Stat) -> None:
        """Reads the exit status of a zombie. Its command line is gone, but its short name is still there."""
        if self.forked and not stat.forked:
            self.command = ()
            self.program = procfs.read(f"{procfs.PROC}/{self.pid}/comm").decode(errors="replace").strip()
        self.status, self.forked = stat.exit_status, stat.forked
        self.role = self.infer_role()

    def read_reaped(self, status: int | None) -> None:
        """Takes the exit status of a process that its parent has reaped already.

        A process that was observed only once, right after its fork, may have run another program since. A nonzero exit
        code is then no failure of a worker: helper programs return one.
        """
        self.status = status
        if self.forked and self.refreshes <= 1 and self.exit_code:
            self.command, self.program, self.forked = (), "", False
            self.role = self.infer_role()

    def infer_role(self) -> Role:
        """Returns its role in the tree, from the program that it runs."""
        if self.is_command:
            return "command"
        if any(service in word for service in SERVICES for word in self.command):
            return "service"
        return "worker" if self.is_python and (self.forked or self.is_spawned) else "program"

    def measure_shared(self) -> None:
        """Measures how much of its memory it shares with related processes. Takes milliseconds per gigabyte."""
        proportional = procfs.proportional_bytes(self.pid)
        if proportional is not None:
            self.inherited_bytes = max(0, self.held_bytes - proportional)


def usage_of(processes: list[Process]) -> Usage:
    """Sums up what these processes use."""
    workers = [process for process in processes if process.role == "worker"]
    largest = max((process.own_bytes for process in workers), default=0)
    manager_bytes = MANAGER_FRACTION * largest
    busy = [process.own_bytes for process in workers if process.threads == 1 or process.own_bytes >= manager_bytes]
    total = sum(process.own_bytes for process in processes)
    return Usage(len(processes), total, len(busy), sum(busy) // max(1, len(busy)), largest)
