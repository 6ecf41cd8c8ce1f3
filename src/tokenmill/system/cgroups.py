"""The memory of a process's control group, version 1 or 2: its limit, and how often the kernel killed in it."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass

from tokenmill.system import procfs

ROOT = "/sys/fs/cgroup"
UNLIMITED = 1 << 60
"""Version 1 writes a number near the largest there is where nothing is set."""

Membership = tuple[tuple[str, int], ...]
"""The directories that hold a process's memory counters, its own group first, each with its version."""


@dataclass(frozen=True, slots=True)
class ControlFiles:
    """What the files of a version are called."""

    limit: str
    used: str
    kills: str


NAMES = {
    1: ControlFiles("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control"),
    2: ControlFiles("memory.max", "memory.current", "memory.events"),
}


def membership(pid: int, controller: str = "memory") -> Membership:
    """Where the memory of a process is counted, or what another controller counts."""
    return _directories(procfs.read(f"{procfs.PROC}/{pid}/cgroup").decode(errors="replace"), controller)


def pids_limit(pid: int) -> int | None:
    """How many processes and threads the control groups of a process may hold."""
    values = [_number(f"{directory}/pids.max") for directory, _ in membership(pid, "pids")]
    return min((value for value in values if value is not None), default=None)


def kills(member: Membership) -> int | None:
    """How many processes of this very group the kernel has killed for lack of memory; None if it does not tell."""
    for directory, version in member:
        for line in procfs.read(f"{directory}/{NAMES[version].kills}").splitlines():
            name, _, value = line.partition(b" ")
            if name == b"oom_kill":
                return int(value)
    return None


def limit(member: Membership) -> tuple[str, int] | None:
    """The tightest limit that holds for the group, with the directory that sets it."""
    set_ = [(_number(f"{directory}/{NAMES[version].limit}"), directory) for directory, version in member]
    found = [(value, directory) for value, directory in set_ if value is not None and value < UNLIMITED]
    return (min(found)[1], min(found)[0]) if found else None


@functools.lru_cache(maxsize=256)
def _directories(text: str, controller: str) -> Membership:
    found = []
    for line in text.splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            found += [(each, 2) for each in _upwards([ROOT, f"{ROOT}/unified"], path)]
        elif controller in controllers.split(","):
            found += [(each, 1) for each in _upwards([f"{ROOT}/{controllers}", f"{ROOT}/{controller}"], path)]
    return tuple((each, version) for each, version in found if os.path.exists(each))


def _upwards(roots: list[str], path: str) -> list[str]:
    below = [path.strip("/")]
    while below[-1]:
        below.append(os.path.dirname(below[-1]))
    return list(dict.fromkeys(os.path.join(root, part).rstrip("/") for root in roots for part in below))


def _number(path: str) -> int | None:
    value = procfs.read(path).strip()
    return int(value) if value.isdigit() else None
