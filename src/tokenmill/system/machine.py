"""Cores, memory and disk space that this process may use, by affinity, cgroup (v1 and v2), quota and Slurm."""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
import resource
import sys
import threading
from collections.abc import Iterator

from tokenmill.system import cgroups, procfs, slurm

DEFAULT_MEMORY_FRACTION = 0.7
_QUOTACTL_FD = 443  # a system call of Linux 5.14 and later
_Q_GETQUOTA = 0x800007  # its command that reads a quota
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cores() -> int:
    """The number of usable cores: the affinity mask, limited by the cgroup's CPU quota and by Slurm."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota in _cpu_quotas():
        count = min(count, max(1, math.ceil(quota)))
    return min(count, slurm.processors() or count)


def memory_bytes() -> int:
    """The memory of the machine, or the cgroup's limit if that is smaller."""
    total = PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")
    return min(total, memory_limit_bytes() or total)


def memory_limit_bytes() -> int | None:
    """The memory limit of the cgroup; None without a limit."""
    limit = cgroups.limit(cgroups.membership(os.getpid()))
    return None if limit is None else limit[1]


def default_memory_budget() -> int:
    """The default memory budget: 70 % of this process's memory, or of what Slurm allocated."""
    total = memory_bytes()
    return int(min(total, slurm.memory_bytes(cores()) or total) * DEFAULT_MEMORY_FRACTION)


def resident_bytes() -> int:
    """The resident memory of this process now."""
    resident, _ = _pages()
    return resident * PAGE_BYTES or peak_bytes(resource.getrusage(resource.RUSAGE_SELF))


def private_bytes() -> int:
    """The resident memory of this process without mapped files: a memory-mapped dataset does not count."""
    resident, mapped = _pages()
    return (resident - mapped) * PAGE_BYTES or resident_bytes()


def private_bytes_of(pid: int) -> int:
    """The same for another process; 0 if the system does not report it, or the process has ended."""
    resident, mapped = _pages(str(pid))
    return (resident - mapped) * PAGE_BYTES


def _pages(process: str = "self") -> tuple[int, int]:
    """Resident pages of a process, and those of mapped files among them; 0 if the system does not report them."""
    fields = procfs.read(f"{procfs.PROC}/{process}/statm").split()
    return (int(fields[1]), int(fields[2])) if fields else (0, 0)


def peak_bytes(usage: resource.struct_rusage) -> int:
    """The peak memory in a resource usage, in bytes on every system."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def free_disk_bytes(path: str) -> int:
    """The space left for this user, by quota too, on the file system where a path is or would be."""
    while not os.path.exists(path):
        path = os.path.dirname(os.path.abspath(path))
    status = os.statvfs(path)
    quotas = (_quota(path, kind, number) for kind, number in enumerate((os.geteuid(), os.getegid())))
    free = (max((hard or soft) * 1024 - used, 0) for hard, soft, used in quotas if hard or soft)
    return min([status.f_bavail * status.f_frsize, *free])


def _quota(path: str, kind: int, number: int) -> tuple[int, int, int]:
    """The quota of a user (kind 0) or group (kind 1): hard and soft limit in KiB, bytes used. Zeros without a quota."""
    if sys.platform != "linux" or os.geteuid() == 0:  # root has no quota
        return 0, 0, 0
    values = (ctypes.c_uint64 * 9)()  # struct if_dqblk
    descriptor = os.open(path, os.O_RDONLY)
    try:
        command = _Q_GETQUOTA << 8 | kind
        failed = ctypes.CDLL(None, use_errno=True).syscall(_QUOTACTL_FD, descriptor, command, number, values)
    finally:
        os.close(descriptor)
    return (0, 0, 0) if failed else (values[0], values[1], values[2])


def give_back_memory() -> None:
    """Return freed memory that the C library keeps to the system, where it supports that."""
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def threads() -> int:
    """The number of threads of this process, including those of native libraries."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def set_oom_score(score: int) -> None:
    """Let the kernel kill this process before others if memory runs out: 500 for a worker, 0 as usual."""
    with contextlib.suppress(OSError), open(f"{procfs.PROC}/self/oom_score_adj", "w") as file:
        file.write(str(score))


def oom_kills() -> tuple[int, int]:
    """How many processes the OOM killer has killed: in this cgroup, or else on this machine since boot."""
    own = cgroups.kills(cgroups.membership(os.getpid()))
    # The group's counter includes every kill in it.
    return (own, 0) if own is not None else (0, kernel_oom_kills() or 0)


def kernel_oom_kills() -> int | None:
    """How many processes the OOM killer has killed since boot; None if the kernel does not report it."""
    for line in procfs.read(f"{procfs.PROC}/vmstat").splitlines():
        if line.startswith(b"oom_kill "):
            return int(line.split()[1])
    return None


def _cpu_quotas() -> Iterator[float]:
    for directory, version in cgroups.membership(os.getpid(), "cpu"):
        if version == 2:
            quota, _, period = procfs.read(f"{directory}/cpu.max").strip().partition(b" ")
        else:
            quota, period = (procfs.read(f"{directory}/cpu.cfs_{name}_us").strip() for name in ("quota", "period"))
        if quota.isdigit() and period.isdigit():  # neither max nor -1
            yield int(quota) / int(period)
