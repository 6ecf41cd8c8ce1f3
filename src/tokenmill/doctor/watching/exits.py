"""Reads the exit status of a process that is not a child: from its pidfd, or from /proc while it is a zombie."""

from __future__ import annotations

import fcntl
import os
import struct

from tokenmill.system import procfs

INFO_BYTES = 64
# PIDFD_GET_INFO. It returns the exit status since Linux 6.15.
INFO_REQUEST = (3 << 30) | (INFO_BYTES << 16) | (0xFF << 8) | 11
# PIDFD_INFO_EXIT, in the mask that is the first field.
EXIT_FLAG = 1 << 3
EXIT_OFFSET = 60


def open_pidfd(pid: int) -> int | None:
    """Returns a descriptor that becomes readable when the process ends, or None if the kernel provides none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def status(pid: int, pidfd: int | None) -> int | None:
    """Returns the wait status of an ended process, or None if it is unavailable."""
    for _ in range(2):  # the parent may reap the process between the two reads
        wait_status = status_from_pidfd(pidfd) if pidfd is not None else None
        wait_status = status_from_zombie(pid) if wait_status is None else wait_status
        if wait_status is not None:
            return wait_status
    return None


def status_from_pidfd(pidfd: int) -> int | None:
    """Returns the wait status from the pidfd. It is available after the parent has reaped the process."""
    info = bytearray(INFO_BYTES)
    struct.pack_into("Q", info, 0, EXIT_FLAG)
    try:
        fcntl.ioctl(pidfd, INFO_REQUEST, info)
    except OSError:
        return None
    (mask,) = struct.unpack_from("Q", info, 0)
    (wait_status,) = struct.unpack_from("i", info, EXIT_OFFSET)
    return int(wait_status) if mask & EXIT_FLAG else None


def status_from_zombie(pid: int) -> int | None:
    """Returns the wait status of a zombie, which its parent has not reaped yet."""
    stat = procfs.stat(pid)
    return stat.exit_status if stat is not None and stat.state == procfs.ZOMBIE else None


def code_and_signal(wait_status: int) -> tuple[int | None, int | None]:
    """Splits a wait status into exit code and signal. One of them is None."""
    if os.WIFSIGNALED(wait_status):
        return None, os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status), None
