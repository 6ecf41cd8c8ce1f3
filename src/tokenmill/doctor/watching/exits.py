"""How a process ended that is not a child of ours: by its pidfd, and by its remains while nobody has collected them."""

from __future__ import annotations

import fcntl
import os
import struct

from tokenmill.system import procfs

INFO_BYTES = 64
INFO_REQUEST = (3 << 30) | (INFO_BYTES << 16) | (0xFF << 8) | 11
"""PIDFD_GET_INFO, which tells the exit status from Linux 6.15 on."""

EXIT_ASKED = 1 << 3
EXIT_OFFSET = 60


def open_pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None if the kernel gives none."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


def status(pid: int, pidfd: int | None) -> int | None:
    """The wait status of a process that has ended, or None if nobody tells."""
    for _ in range(2):  # it tells once the parent has collected it, which may happen between the two questions
        told = told_by(pidfd) if pidfd is not None else None
        found = told if told is not None else left_by(pid)
        if found is not None:
            return found
    return None


def told_by(pidfd: int) -> int | None:
    """The wait status as the pidfd tells it after the parent has collected the process."""
    answer = bytearray(INFO_BYTES)
    struct.pack_into("Q", answer, 0, EXIT_ASKED)
    try:
        fcntl.ioctl(pidfd, INFO_REQUEST, answer)
    except OSError:
        return None
    (given,) = struct.unpack_from("Q", answer, 0)
    (found,) = struct.unpack_from("i", answer, EXIT_OFFSET)
    return int(found) if given & EXIT_ASKED else None


def left_by(pid: int) -> int | None:
    """The wait status in the remains of a process that its parent has not collected yet."""
    remains = procfs.stat(pid)
    return remains.exit_status if remains is not None and remains.state == procfs.ZOMBIE else None


def code_and_signal(wait_status: int) -> tuple[int | None, int | None]:
    """The exit code or the signal of a wait status."""
    if os.WIFSIGNALED(wait_status):
        return None, os.WTERMSIG(wait_status)
    return os.WEXITSTATUS(wait_status), None
