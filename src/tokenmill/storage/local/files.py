"""Files on a disk: checks of a path before it is opened, and how files are written, named and synced.

Another user may have put a link, a pipe or a device at a path. Some directories have to be private, such as one below
the temporary directory: another user could create it first, under the expected name, and change its files later.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from tokenmill.errors import CorruptStore, StoreError

MAX_BYTES = 1 << 30  # a larger file is never read whole
ROOT = 0
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH

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
    return StoreError(f"cannot write {path}", f"reason       {reason}", *filter(None, [advice.get(error.errno or 0)]))


def is_inside(root: str, path: str) -> bool:
    """Whether a path is a directory or below it. Both must be free of links and dots."""
    return path == root or path.startswith(f"{root.rstrip('/')}/")


def has_link(root: str, path: str) -> bool:
    """Whether a path contains a symbolic link below a root. The root itself may be one."""
    while path != root:
        if os.path.islink(path):
            return True
        path = os.path.dirname(path)
    return False


def require_regular_file(path: str) -> os.stat_result:
    """The status of a regular file. Refuses others: a pipe would block its reader, and a device might never end."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise CorruptStore(f"{path} is not a regular file")
    return status


@contextlib.contextmanager
def open_regular(path: str) -> Iterator[BinaryIO]:
    """Open a regular file for reading. Errors name its path."""
    require_regular_file(path)
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise unreadable(path, error) from error


def require_unlinked(path: str) -> str:
    """The path, if writing in place is safe: it is free, or a regular file without another hard link."""
    with contextlib.suppress(FileNotFoundError):
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise CorruptStore(f"{path} is not a file of its own", "It is a link, or not a regular file. Delete it.")
    return path


def require_no_file(path: str) -> None:
    """Raise StoreError if a directory cannot be made because a file is at its path, or above it."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if os.path.exists(path) and not os.path.isdir(path):
        raise StoreError(
            "a directory cannot be made where a file is",
            f"file         {path}",
            "Name another directory, or remove the file.",
        )


def truncated_error(path: str, expected_bytes: int) -> CorruptStore:
    """The error for a file of a store that is too short."""
    return CorruptStore(f"{path} ends early", f"expected     {expected_bytes:,} bytes")


def check_size(path: str, size: int) -> int:
    """The size of a file that will be read whole. Raises CorruptStore above MAX_BYTES: anyone may have made it."""
    if size > MAX_BYTES:
        raise CorruptStore(f"{path} is too large", f"expected     at most {MAX_BYTES:,} bytes")
    return size


def unreadable(path: str, error: OSError) -> StoreError:
    """The error for a path that the system does not let us read."""
    return StoreError(f"cannot read {path}", f"reason       {os.strerror(error.errno or 0)}")


def make_private(directory: str) -> None:
    """Make a directory and its parent so that only this user can write to them. Raises StoreError if that fails."""
    with writing(directory):
        os.makedirs(os.path.dirname(os.path.dirname(directory)), exist_ok=True)
        for path in (os.path.dirname(directory), directory):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
            _close_to_others(path)
    if not is_private(directory):
        raise StoreError(f"{directory} is not used", "reason       it is a link, or another user can write to it")


def is_private(directory: str) -> bool:
    """Whether a directory and its parent belong to this user or root, and no other user can write to them."""
    return all(_is_safe(path, stat.S_ISDIR) for path in (os.path.dirname(directory), directory))


def is_private_file(path: str) -> bool:
    """Whether a path is a regular file of this user or root, not a link, and no other user can write to it."""
    return _is_safe(path, stat.S_ISREG)


def _is_safe(path: str, is_kind: Callable[[int], bool]) -> bool:
    try:
        status = os.lstat(path)
    except OSError:
        return False
    is_ours = status.st_uid in (os.geteuid(), ROOT)
    return is_kind(status.st_mode) and is_ours and not status.st_mode & OTHERS_WRITE


def _close_to_others(path: str) -> None:
    """Remove the write permission of group and others, which a umask may have left."""
    status = os.lstat(path)
    if stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and status.st_mode & OTHERS_WRITE:
        os.chmod(path, stat.S_IMODE(status.st_mode) & ~OTHERS_WRITE, follow_symlinks=False)
