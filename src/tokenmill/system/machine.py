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

from tokenmill.system import cgroups, procfs, slurm

DEFAULT_MEMORY_SHARE = 0.7
_QUOTACTL_FD = 443
_Q_GETQUOTA = 0x800007
"""The system call of Linux 5.14 and later, and its command, that tell a quota."""

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def cores() -> int:
    """How many cores may be used: the affinity mask, cut by the cgroup's CPU quota and by what Slurm has given."""
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for quota in _cpu_quotas():
        count = min(count, max(1, math.ceil(quota)))
    return min(count, slurm.processors() or count)


def memory_bytes() -> int:
    """How much memory there is for this process: the machine's, cut by the cgroup's limit."""
    total = PAGE_BYTES * os.sysconf("SC_PHYS_PAGES")
    return min(total, memory_limit_bytes() or total)


def memory_limit_bytes() -> int | None:
    """What the cgroup allows this process, if anything limits it."""
    limit = cgroups.limit(cgroups.membership(os.getpid()))
    return None if limit is None else limit[1]


def default_memory_budget() -> int:
    """The budget when none is given: 70 % of the memory there is, or of what Slurm has given."""
    there = memory_bytes()
    return int(min(there, slurm.memory_bytes(cores()) or there) * DEFAULT_MEMORY_SHARE)


def resident_bytes() -> int:
    """The memory this process holds now."""
    resident, _ = _pages()
    return resident * PAGE_BYTES or peak_bytes(resource.getrusage(resource.RUSAGE_SELF))


def private_bytes() -> int:
    """The memory this process holds now, without the files it maps: a dataset that is mapped is not its own."""
    resident, mapped = _pages()
    return (resident - mapped) * PAGE_BYTES or resident_bytes()


def private_bytes_of(pid: int) -> int:
    """The same of another process; 0 where that is not told, or if it is gone."""
    resident, mapped = _pages(str(pid))
    return (resident - mapped) * PAGE_BYTES


def _pages(process: str = "self") -> tuple[int, int]:
    """How many pages of memory a process holds, and how many of these are files; 0 where that is not told."""
    fields = procfs.read(f"{procfs.PROC}/{process}/statm").split()
    return (int(fields[1]), int(fields[2])) if fields else (0, 0)


def peak_bytes(usage: resource.struct_rusage) -> int:
    """The peak memory a process's resource usage tells, in bytes on every system."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_bytes_of(pid: int) -> int | None:
    """The peak memory of another process that lives, where the system tells."""
    return procfs.number(procfs.status(pid), b"VmHWM") * 1024 or None


def free_disk_bytes(path: str) -> int:
    """The space left for this user on the disk where a path is, or would be."""
    while not os.path.exists(path):
        path = os.path.dirname(os.path.abspath(path))
    status = os.statvfs(path)
    quotas = (_quota(path, kind, number) for kind, number in enumerate((os.geteuid(), os.getegid())))
    left = (max((hard or soft) * 1024 - used, 0) for hard, soft, used in quotas if hard or soft)
    return min([status.f_bavail * status.f_frsize, *left])


def _quota(path: str, kind: int, number: int) -> tuple[int, int, int]:
    """The quota of a user (kind 0) or group (kind 1): hard and soft limit in KiB, bytes used. Zeros if it has none."""
    if sys.platform != "linux" or os.geteuid() == 0:  # no quota holds for root
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
    """Return what the C library keeps of freed memory to the system, where it can be asked to."""
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)


def threads() -> int:
    """How many threads this process has, those of native libraries included."""
    try:
        return len(os.listdir("/proc/self/task"))
    except OSError:
        return threading.active_count()


def raise_oom_score() -> None:
    """Ask the kernel to take this process before others when memory runs out, where it can be asked."""
    _ask_oom_killer(500)


def reset_oom_score() -> None:
    """Ask the kernel to take those first that this process has asked to die first, whoever has asked it otherwise."""
    _ask_oom_killer(0)


def _ask_oom_killer(score: int) -> None:
    with contextlib.suppress(OSError), open(f"{procfs.PROC}/self/oom_score_adj", "w") as file:
        file.write(str(score))


def oom_kills() -> tuple[int, int]:
    """How many processes the kernel has killed for lack of memory: in this cgroup, and on this machine since boot."""
    own = cgroups.kills(cgroups.membership(os.getpid()))
    return (own, 0) if own is not None else (0, kernel_oom_kills() or 0)  # a group counts all that were killed in it


def kernel_oom_kills() -> int | None:
    """How many processes the kernel has killed for lack of memory since boot, where it tells."""
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
