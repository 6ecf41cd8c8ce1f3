"""One watched process: what was last seen of it while it lived, and how it ended."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal

from tokenmill.doctor.watching import exits
from tokenmill.system import cgroups, procfs

Role = Literal["command", "worker", "service", "program"]

NAME_CHARACTERS = 60
SERVICES = ("multiprocessing.resource_tracker", "multiprocessing.forkserver", "multiprocess.resource_tracker")
POOL_MARKS = ("--multiprocessing-fork", "multiprocessing.spawn", "multiprocess.spawn")


@dataclass(frozen=True, slots=True)
class Usage:
    """What the tree used when one of its processes ended, that one included. Workers are those that do the work."""

    processes: int
    bytes: int
    workers: int
    worker_bytes: int
    largest_worker_bytes: int


MANAGER_SHARE = 0.25
"""What has threads and holds less than this share of the largest worker's memory is no worker, but manages them."""


@dataclass(slots=True)
class Process:
    """A process of the tree. Sizes are in bytes; times are seconds since the watch began.

    `held` is its memory without files, which the kernel can always drop; `inherited`, the part of it that counts
    elsewhere in the tree; `peak`, the most it held.
    """

    pid: int
    parent: int
    start_ticks: int
    born: float
    is_command: bool = False
    role: Role = "program"
    pidfd: int | None = None
    forked: bool = False
    threads_of_parent: int | None = None
    words: tuple[str, ...] = ()
    program: str = ""
    state: str = "R"
    threads: int = 1
    cpu_seconds: float = 0.0
    held: int = 0
    inherited: int = 0
    peak: int = 0
    files: int = 0
    cgroup: cgroups.Membership = ()
    limits: dict[str, int] = field(default_factory=dict)
    ended: float | None = None
    status: int | None = None
    usage: Usage | None = None

    @property
    def own(self) -> int:
        """The memory that counts for this process."""
        return max(0, self.held - self.inherited)

    @property
    def is_python(self) -> bool:
        """Whether it runs Python."""
        return self.program.startswith(("python", "pypy"))

    @property
    def is_spawned(self) -> bool:
        """Whether multiprocessing started it anew, for a pool or the like."""
        return any(mark in word for mark in POOL_MARKS for word in self.words)

    @property
    def name(self) -> str:
        """Its command line, short enough for a table."""
        if not self.words:
            return self.program or "unknown"
        if self.is_spawned:
            return "spawned by multiprocessing"
        line = " ".join([os.path.basename(self.words[0]), *self.words[1:]])
        line = " ".join(line.split())
        return line if len(line) <= NAME_CHARACTERS else f"{line[: NAME_CHARACTERS - 3]}..."

    @property
    def seconds(self) -> float | None:
        """How long it lived, once it has ended."""
        return None if self.ended is None else max(0.0, self.ended - self.born)

    @property
    def code(self) -> int | None:
        """Its exit code, if it ended with one."""
        return None if self.status is None else exits.code_and_signal(self.status)[0]

    @property
    def signal(self) -> int | None:
        """The signal that ended it, if one did."""
        return None if self.status is None else exits.code_and_signal(self.status)[1]

    def look(self) -> bool:
        """See how it is; False if it has ended."""
        seen = procfs.stat(self.pid)
        if seen is None or seen.start_ticks != self.start_ticks or seen.state == procfs.ZOMBIE:
            return False
        has_changed = self.forked and not seen.forked
        self.state, self.forked = seen.state, seen.forked
        if has_changed:  # it runs another program now
            self.inherited = 0
            self.look_closely()
        self.threads, self.cpu_seconds = seen.threads, seen.cpu_seconds
        sizes = procfs.status(self.pid)
        self.held = procfs.held_bytes(sizes)
        self.files = max(self.files, procfs.number(sizes, b"RssFile") * 1024)
        self.peak = max(self.peak, self.held, procfs.number(sizes, b"VmHWM") * 1024 - self.files)
        return True

    def look_closely(self) -> None:
        """See what seldom changes: its command line, limits and cgroup."""
        self.words = procfs.command_line(self.pid) or self.words
        self.program = procfs.program(self.pid) or self.program
        self.limits = procfs.limits(self.pid) or self.limits
        self.cgroup = cgroups.membership(self.pid) or self.cgroup
        self.role = self.judge_role()

    def take_remains(self, seen: procfs.Stat) -> None:
        """See how it ended, and what it was in the end: its command line is gone, its short name is left."""
        if self.forked and not seen.forked:
            self.words = ()
            self.program = procfs.read(f"{procfs.PROC}/{self.pid}/comm").decode(errors="replace").strip()
        self.status, self.forked = seen.exit_status, seen.forked
        self.role = self.judge_role()

    def judge_role(self) -> Role:
        """What it is in the tree, by what it runs."""
        if self.is_command:
            return "command"
        if any(service in word for service in SERVICES for word in self.words):
            return "service"
        return "worker" if self.is_python and (self.forked or self.is_spawned) else "program"

    def measure_own(self) -> None:
        """Find out how much of its memory it shares with its relatives. This takes milliseconds for gigabytes."""
        private = procfs.proportional_bytes(self.pid)
        if private is not None:
            self.inherited = max(0, self.held - private)


def usage_of(processes: list[Process]) -> Usage:
    """What these processes use."""
    workers = [process for process in processes if process.role == "worker"]
    largest = max((process.own for process in workers), default=0)
    busy = [process.own for process in workers if process.threads == 1 or process.own >= MANAGER_SHARE * largest]
    whole = sum(process.own for process in processes)
    return Usage(len(processes), whole, len(busy), sum(busy) // max(1, len(busy)), largest)
