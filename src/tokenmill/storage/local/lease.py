"""A lease on a disk: a locked file."""

from __future__ import annotations

import fcntl
from typing import BinaryIO

from tokenmill.storage.local.locks import ALONE, try_lock


class DiskLease:
    """A locked file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def take(self) -> bool:
        """Whether nobody else has it."""
        return try_lock(self._file, ALONE)

    def release(self) -> None:
        """Unlock it."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()
