"""Orphans: what a command started and left behind becomes a child of this program, which can then end it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

from benchmarks.process_tree import process_tree

PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on, descendants whose parent ends become children of this process; Linux has that."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants() -> list[int]:
    """All processes below this one that have not ended; none where there is no /proc."""
    return [pid for pid in _children() if not _has_ended(pid)]


def _children() -> list[int]:
    return process_tree(os.getpid())[1:] if os.path.isdir("/proc") else []


def _has_ended(pid: int) -> bool:
    """Whether only its exit code is left."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True


def end_descendants() -> None:
    """Kill all processes below this one, until there are none."""
    while found := _children():
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in found:
            with contextlib.suppress(ChildProcessError):  # a grandchild, which is adopted next time
                os.waitpid(pid, 0)
