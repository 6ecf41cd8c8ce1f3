"""How bytes get to the disk, and what is said when they do not."""

from __future__ import annotations

import errno
import io
import os
from typing import Any

from tokenmill.errors import StoreError

EAGER_BYTES = 8 << 20


class AlreadyPublishedError(Exception):
    """Somebody else has published a file of this name first: that one counts."""


class EagerFile(io.FileIO):
    """A file whose bytes are on their way to the disk while more are written, so that syncing it takes no long wait."""

    _waiting = 0

    def write(self, data: Any) -> int:
        """Write, and after some megabytes tell the kernel that they can go; it starts to write them out."""
        written = super().write(data)
        self._waiting += written
        if self._waiting >= EAGER_BYTES and hasattr(os, "posix_fadvise"):
            start = self.tell() - self._waiting
            os.posix_fadvise(self.fileno(), start, self._waiting, os.POSIX_FADV_DONTNEED)
            self._waiting = 0
        return written


def sync_directory(path: str) -> None:
    """Make the names in a directory survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_error(path: str, error: OSError) -> StoreError:
    """The error for a path that could not be written, with what to do where that is known."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    advice = {
        errno.ENOSPC: "Free some space and run the same command again: what is committed stays.",
        errno.EDQUOT: "Free some of the quota and run the same command again: what is committed stays.",
        errno.EROFS: "Choose an --out that can be written.",
        errno.EACCES: "Choose an --out that can be written.",
    }
    details = [f"reason       {reason}"]
    if error.errno in advice:
        details.append(advice[error.errno])
    return StoreError(f"cannot write {path}", *details)
