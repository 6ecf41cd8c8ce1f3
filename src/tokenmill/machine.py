"""What this machine grants this process: cores and memory, as affinity and cgroup (v1 and v2) allow."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import sys
import threading
from collections.abc import Iterator

DEFAULT_MEMORY_SHARE = 0.7


def cores() -> int:
    """How many cores may be used: the affinity mask, cut by the cgroup's CPU quota."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota in _cpu_quotas():
        count = min(count, max(1, math.ceil(quota)))
    return count


def memory_bytes() -> int:
    """How much memory there is for this process: the machine's, cut by the cgroup's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([total, *_memory_limits()])


def default_memory_budget() -> int:
    """The budget when none is given: 70 % of the memory there is."""
    return int(memory_bytes() * DEFAULT_MEMORY_SHARE)


def resident_bytes() -> int:
    """The memory this process holds now."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return peak_bytes(resource.getrusage(resource.RUSAGE_SELF))


def private_bytes() -> int:
    """The memory this process holds now, without the files it maps: a dataset that is mapped is not its own."""
    try:
        with open("/proc/self/statm", "rb") as file:
            resident, shared = file.read().split()[1:3]
    except OSError:
        return resident_bytes()
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def peak_bytes(usage: resource.struct_rusage) -> int:
    """The peak memory a process's resource usage tells, in bytes on every system."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_bytes_of(pid: int) -> int | None:
    """The peak memory of another process that lives, where the system tells."""
    for line in _read(f"/proc/{pid}/status").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def give_back_memory() -> None:
    """Return what the C library keeps of freed memory to the system, where it can be asked to."""
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def threads() -> int:
    """How many threads this process has, those of native libraries included."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def kernel_oom_kills() -> int | None:
    """How many processes the kernel has killed for lack of memory since boot, where it tells."""
    try:
        with open("/proc/vmstat", "rb") as file:
            for line in file:
                if line.startswith(b"oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return None


def _cgroup_directories(controller: str) -> Iterator[tuple[str, int]]:
    """The directories of this process's cgroup and its parents, with the cgroup version (1 or 2)."""
    try:
        with open("/proc/self/cgroup") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
    except OSError:
        return
    for number, controllers, path in lines:
        if number == "0" and not controllers:
            roots, version = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], 2
        elif controller in controllers.split(","):
            roots, version = [f"/sys/fs/cgroup/{controllers}", f"/sys/fs/cgroup/{controller}"], 1
        else:
            continue
        for root in roots:
            below = path.strip("/")
            while True:
                yield os.path.join(root, below), version
                if not below:
                    break
                below = os.path.dirname(below)


def _cpu_quotas() -> Iterator[float]:
    for directory, version in _cgroup_directories("cpu"):
        if version == 2:
            fields = _read(f"{directory}/cpu.max").split()
            if len(fields) == 2 and fields[0] != "max":
                yield int(fields[0]) / int(fields[1])
        else:
            quota, period = _read(f"{directory}/cpu.cfs_quota_us"), _read(f"{directory}/cpu.cfs_period_us")
            if quota and period and int(quota) > 0:
                yield int(quota) / int(period)


def _memory_limits() -> Iterator[int]:
    for directory, version in _cgroup_directories("memory"):
        limit = _read(f"{directory}/{'memory.max' if version == 2 else 'memory.limit_in_bytes'}")
        if limit and limit != "max":
            yield int(limit)


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""
