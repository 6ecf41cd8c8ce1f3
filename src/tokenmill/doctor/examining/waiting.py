"""Whether a process waits for a lock that nobody in it can release."""

from __future__ import annotations

import os
import platform

from tokenmill.doctor import procfs

FUTEX = {"x86_64": b"202", "aarch64": b"98"}
"""The number of the system call in which a thread waits for a lock."""


def waits_for_lock(pid: int) -> bool:
    """Whether every thread of a process waits for a lock, without a time limit. False where that cannot be read."""
    try:
        tasks = os.listdir(f"{procfs.PROC}/{pid}/task")
    except OSError:
        return False
    return bool(tasks) and all(_waits(procfs.read(f"{procfs.PROC}/{pid}/task/{task}/syscall")) for task in tasks)


def _waits(line: bytes) -> bool:
    """Whether this is the call: its number, then its arguments, of which the fourth is the time limit."""
    words = line.split()
    return len(words) > 4 and words[0] == FUTEX.get(platform.machine()) and int(words[4], 16) == 0
