"""Write, name and sync files on a disk, and explain what fails."""

from __future__ import annotations

import contextlib
import errno
import io
import os
from collections.abc import Iterator
from typing import Any

from tokenmill.errors import StoreError

FLUSH_BYTES = 8 << 20  # written between two requests to start writeback

# What `link` fails with on file systems without hard links.
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EXDEV)


class AlreadyPublishedError(Exception):
    """Another process has published a file of this name. That file counts."""


class EagerFile(io.FileIO):
    """A file whose bytes the kernel starts to write out while more are written, so that the fsync is short."""

    _unflushed_bytes = 0

    def write(self, data: Any) -> int:
        """Write, and after some megabytes ask the kernel to start writeback."""
        written = super().write(data)
        self._unflushed_bytes += written
        if self._unflushed_bytes >= FLUSH_BYTES and hasattr(os, "posix_fadvise"):
            start = self.tell() - self._unflushed_bytes
            os.posix_fadvise(self.fileno(), start, self._unflushed_bytes, os.POSIX_FADV_DONTNEED)
            self._unflushed_bytes = 0
        return written


def sync_directory(path: str) -> None:
    """Make the names in a directory survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def rename_if_absent(temporary: str, path: str) -> None:
    """Give a temporary file its name. Raises AlreadyPublishedError if another file has it."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise AlreadyPublishedError(path) from None
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if os.path.exists(path):  # without hard links, another process can still create it before the next line
            raise AlreadyPublishedError(path) from None
        os.replace(temporary, path)


@contextlib.contextmanager
def writing(path: str) -> Iterator[None]:
    """Turn an OSError of the block into a StoreError that names the path."""
    try:
        yield
    except OSError as error:
        raise write_error(path, error) from error


def write_error(path: str, error: OSError) -> StoreError:
    """The error for a path that could not be written, with advice where there is one."""
    reason = os.strerror(error.errno) if error.errno else str(error)
    advice = {
        errno.ENOSPC: "Free some space and run the same command again: committed work is kept.",
        errno.EDQUOT: "Free some of the quota and run the same command again: committed work is kept.",
        errno.EROFS: "Choose an --out that can be written.",
        errno.EACCES: "Choose an --out that can be written.",
    }
    details = [f"reason       {reason}"]
    if error.errno in advice:
        details.append(advice[error.errno])
    return StoreError(f"cannot write {path}", *details)
