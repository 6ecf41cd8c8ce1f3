"""One watched process: its last observed state and how it ended."""

from __future__ import annotations

import fcntl
import os
import struct
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from tokenmill.system import cgroups, procfs

Role = Literal["command", "worker", "service", "program"]

NAME_CHARACTERS = 60
SERVICES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "multiprocess.resource_tracker")
# In the command line of an interpreter that multiprocessing starts for a worker.
SPAWNED = ("--multiprocessing-fork", "multiprocessing.spawn", "multiprocess.spawn")
# A multithreaded process that holds less than this fraction of the largest worker's memory manages workers.
MANAGER_FRACTION = 0.25
INFO_BYTES = 64
# PIDFD_GET_INFO. It returns the exit status since Linux 6.15.
INFO_REQUEST = (3 << 30) | (INFO_BYTES << 16) | (0xFF << 8) | 11
# PIDFD_INFO_EXIT, in the mask that is the first field.
EXIT_FLAG = 1 << 3
EXIT_OFFSET = 60


@dataclass(slots=True)
class Process:
    """A process of the tree. Times are seconds since the watch began.

    `held_bytes` excludes mapped files, which the kernel can drop at any time. `inherited_bytes` is the part of it that
    is counted for its parent. `peak_bytes` is the maximum of `held_bytes`.
    """

    pid: int
    parent: int
    start_ticks: int
    started_at: float
    is_command: bool = False
    role: Role = "program"
    pidfd: int | None = None
    forked: bool = False
    command: tuple[str, ...] = ()
    program: str = ""
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
    def name(self) -> str:
        """Its command line, shortened for a table."""
        words = [os.path.basename(self.command[0]), *self.command[1:]] if self.command else [self.program or "unknown"]
        return textwrap.shorten(" ".join(words), NAME_CHARACTERS, placeholder="...")

    @property
    def seconds(self) -> float:
        """Its lifetime, 0 while it runs."""
        return max(0.0, (self.ended_at or 0.0) - self.started_at)

    @property
    def exit_code(self) -> int | None:
        """Its exit code, None if it runs or a signal ended it."""
        return os.WEXITSTATUS(self.status) if self.status is not None and not os.WIFSIGNALED(self.status) else None

    @property
    def signal(self) -> int | None:
        """The signal that ended it, None if no signal did."""
        return os.WTERMSIG(self.status) if self.status is not None and os.WIFSIGNALED(self.status) else None

    def refresh(self) -> bool:
        """Reads its current state. Returns False if it has ended."""
        stat = procfs.stat(self.pid)
        if stat is None or stat.start_ticks != self.start_ticks or stat.state == procfs.ZOMBIE:
            return False
        called_exec, self.forked = self.forked and not stat.forked, stat.forked
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
        """Reads what rarely changes: command line, limits, cgroup and role. A process that has ended keeps its own.

        The kernel moves a process that ends to the root cgroup, and takes its command line.
        """
        command = procfs.command_line(self.pid)
        if not command and self.command:
            return
        self.command = command or self.command
        self.program = procfs.program(self.pid) or self.program
        self.limits = procfs.limits(self.pid) or self.limits
        self.cgroup = cgroups.membership(self.pid) or self.cgroup
        self._infer_role()

    def read_end(self) -> None:
        """Reads the exit status: of a zombie, or from the pidfd if the parent has reaped the process already."""
        stat = procfs.stat(self.pid)
        if stat is not None and stat.start_ticks == self.start_ticks and stat.state == procfs.ZOMBIE:
            if self.forked and not stat.forked:  # the command line of a zombie is gone, but not its short name
                self.command = ()
                self.program = procfs.read(f"{procfs.PROC}/{self.pid}/comm").decode(errors="replace").strip()
            self.status, self.forked = stat.exit_status, stat.forked
            self._infer_role()
        else:
            self.take_status(None if self.pidfd is None else _status_from_pidfd(self.pidfd))

    def take_status(self, status: int | None) -> None:
        """Takes the exit status of a process that its parent has reaped already.

        A process that was observed only once, right after its fork, may have run another program since. A nonzero exit
        code is then no failure of a worker: helper programs return one.
        """
        self.status = status
        if self.forked and self.refreshes <= 1 and self.exit_code:
            self.command, self.program, self.forked = (), "", False
            self._infer_role()

    def _infer_role(self) -> None:
        """Sets its role in the tree, from the program that it runs."""
        is_spawned = any(argument in word for argument in SPAWNED for word in self.command)
        if self.is_command:
            self.role = "command"
        elif any(service in word for service in SERVICES for word in self.command):
            self.role = "service"
        else:
            self.role = "worker" if self.is_python and (self.forked or is_spawned) else "program"


def count_workers(processes: Iterable[Process]) -> int:
    """Returns the number of workers. A small process with threads is not counted: it is a multiprocessing.Manager."""
    workers = [process for process in processes if process.role == "worker"]
    manager_bytes = MANAGER_FRACTION * max((process.own_bytes for process in workers), default=0)
    return sum(process.threads == 1 or process.own_bytes >= manager_bytes for process in workers)


def _status_from_pidfd(pidfd: int) -> int | None:
    """Returns the wait status, which is available after the parent has reaped the process, or None."""
    info = bytearray(INFO_BYTES)
    struct.pack_into("Q", info, 0, EXIT_FLAG)
    try:
        fcntl.ioctl(pidfd, INFO_REQUEST, info)
    except OSError:
        return None
    (mask,) = struct.unpack_from("Q", info, 0)
    (wait_status,) = struct.unpack_from("i", info, EXIT_OFFSET)
    return int(wait_status) if mask & EXIT_FLAG else None
