"""A lease on a disk."""

from __future__ import annotations

import fcntl
from typing import BinaryIO

from tokenmill.storage.local.locks import EXCLUSIVE, try_lock


class DiskLease:
    """A lease as an exclusive file lock, which the system releases when its process ends."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def take(self) -> bool:
        """Try to lock the file."""
        return try_lock(self._file, EXCLUSIVE)

    def release(self) -> None:
        """Unlock and close the file."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()
