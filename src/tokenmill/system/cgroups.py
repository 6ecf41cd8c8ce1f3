"""Limits and OOM kills of a process's control group, version 1 or 2."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

from tokenmill.system import procfs

ROOT = "/sys/fs/cgroup"
UNLIMITED = 1 << 60  # version 1 shows a number near the maximum if there is no limit

# The directories of a process's counters, its own group first, each with its cgroup version.
Membership = tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class ControlFiles:
    """The file names of a cgroup version."""

    limit: str
    used: str
    kills: str


NAMES = {
    1: ControlFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
    2: ControlFiles("memory.max", "memory.current", "memory.events"),
}


def membership(pid: int, controller: str = "memory") -> Membership:
    """The control groups of a process for a controller."""
    return _directories(procfs.read(f"{procfs.PROC}/{pid}/cgroup").decode(errors="replace"), controller)


def pids_limit(pid: int) -> int | None:
    """The maximum number of processes and threads in the control groups of a process; None without a limit."""
    values = [_number(f"{directory}/pids.max") for directory, _ in membership(pid, "pids")]
    return min((value for value in values if value is not None), default=None)


def kills(member: Membership) -> int | None:
    """How many processes of this group the OOM killer has killed; None if the kernel does not report it."""
    for directory, version in member:
        for line in procfs.read(f"{directory}/{NAMES[version].kills}").splitlines():
            name, _, value = line.partition(b" ")
            if name == b"oom_kill":
                return int(value)
    return None


def limit(member: Membership) -> tuple[str, int] | None:
    """The smallest memory limit of a group and its parents, with the directory that sets it; None without a limit."""
    values = [(_number(f"{directory}/{NAMES[version].limit}"), directory) for directory, version in member]
    limits = [(value, directory) for value, directory in values if value is not None and value < UNLIMITED]
    return (min(limits)[1], min(limits)[0]) if limits else None


@functools.lru_cache(maxsize=256)
def _directories(text: str, controller: str) -> Membership:
    directories = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            directories += [(directory, 2) for directory in _upwards([ROOT, f"{ROOT}/unified"], path)]
        elif controller in controllers.split(","):
            roots = [f"{ROOT}/{controllers}", f"{ROOT}/{controller}"]
            directories += [(directory, 1) for directory in _upwards(roots, path)]
    return tuple((directory, version) for directory, version in directories if os.path.exists(directory))


def _upwards(roots: list[str], path: str) -> list[str]:
    """The group at a path and its parents, below each root."""
    below = [path.strip("/")]
    while below[-1]:
        below.append(os.path.dirname(below[-1]))
    return list(dict.fromkeys(os.path.join(root, part).rstrip("/") for root in roots for part in below))


def _number(path: str) -> int | None:
    value = procfs.read(path).strip()
    return int(value) if value.isdigit() else None
