"""What the kernel says of the processes that it killed for lack of memory, where its log may be read."""

from __future__ import annotations

import contextlib
import os
import re

LOG = "/dev/kmsg"
RECORD_BYTES = 8192
KILLED = re.compile(rb"Killed process (\d+) .*?anon-rss:(\d+)kB(?:.*?shmem-rss:(\d+)kB)?")


class KernelLog:
    """The kernel's messages from now on."""

    def __init__(self) -> None:
        self._killed: dict[int, int] = {}
        self._file: int | None = None
        with contextlib.suppress(OSError):  # most users may not read it
            self._file = os.open(LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._file, 0, os.SEEK_END)

    def killed(self, pid: int) -> int | None:
        """The memory that a process held when the kernel killed it for that; None if the log does not say so."""
        self._read()
        return self._killed.pop(pid, None)

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _read(self) -> None:
        while self._file is not None:
            try:
                record = os.read(self._file, RECORD_BYTES)
            except BrokenPipeError:  # older messages were overwritten before they were read
                continue
            except OSError:
                return
            if match := KILLED.search(record):
                self._killed[int(match[1])] = (int(match[2]) + int(match[3] or 0)) * 1024
