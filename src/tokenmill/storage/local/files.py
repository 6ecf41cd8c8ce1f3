"""Files on a disk: checks of a path before it is opened, how files are written, named and synced, and locks.

Another user may have put a link, a pipe or a device at a path. Locks hold on a disk that several processes and machines
share. The system releases them when the process ends. The exclusive holder writes its process id into the lock file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import io
import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

from tokenmill.errors import TRY_AGAIN, CorruptStore, StoreError, UsageError
from tokenmill.storage.folder import Folder, Lease

MAX_BYTES = 1 << 30  # a larger file is never read whole

FLUSH_BYTES = 8 << 20  # written between two requests to start writeback

# What `link` fails with on file systems without hard links.
NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EXDEV)

CLEANUP_SECONDS = 20.0  # a process that cleans up after others may hold the exclusive lock this long


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


@dataclass(frozen=True, slots=True)
class DiskLocks:
    """The locks of a folder on a disk, by the names of their files."""

    _folder: Folder

    @contextlib.contextmanager
    def exclusive(self, name: str, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
        """Hold the folder alone; see Locks. The system releases the lock however the process ends."""
        with self._locked(name, fcntl.LOCK_EX, on_wait) as file:
            with writing(file.name):
                file.truncate(0)
                os.write(file.fileno(), b"%d\n" % os.getpid())
            yield

    @contextlib.contextmanager
    def shared(self, name: str) -> Iterator[None]:
        """Hold the folder together with others. Raises UsageError if a process holds it exclusively for long.

        The last of several processes takes the exclusive lock for a moment to clean up.
        """
        with self._locked(name, fcntl.LOCK_SH, timeout_seconds=CLEANUP_SECONDS) as file:
            file.truncate(0)  # remove the process id of an earlier exclusive holder
            yield

    def holder(self, name: str) -> str | None:
        """The process id of the exclusive holder, as text; None if no process holds it."""
        if not self._folder.exists(name):
            return None
        with open_regular(self._folder.path(name)) as file:
            return None if _try_lock(file, fcntl.LOCK_SH) else str(_holder(file))

    def remove_if_empty(self, name: str) -> None:
        """Remove the folder if it contains nothing but its lock file, which the caller holds."""
        with contextlib.suppress(OSError):
            if os.listdir(self._folder.root) == [name]:
                os.unlink(self._folder.path(name))
                os.rmdir(self._folder.root)  # fails if another process has created a file meanwhile

    def lease(self, name: str) -> Lease:
        """A lease of that name, not yet taken."""
        return DiskLease(_lock_file(self._folder.path(f".{name}.lock")))

    def check_conditional_create(self) -> None:
        """Do nothing: a file system creates a name once."""

    @contextlib.contextmanager
    def _locked(
        self, name: str, kind: int, on_wait: Callable[[str], None] | None = None, timeout_seconds: float = 0.0
    ) -> Iterator[BinaryIO]:
        """Hold a lock file. If others hold it after the timeout, call `on_wait` and block, or raise UsageError."""
        with _lock_file(self._folder.path(name)) as file:
            deadline = time.monotonic() + timeout_seconds
            while not (taken := _try_lock(file, kind)) and time.monotonic() < deadline:
                time.sleep(0.1)
            if not taken:
                owner = str(_holder(file) or "several, on one or more machines")
                if on_wait is None:
                    raise UsageError(
                        f"another run is writing to {self._folder.root}",
                        f"process      {owner}",
                        "Wait for it to end, stop it, or use another --out.",
                        exit_code=TRY_AGAIN,
                    )
                on_wait(owner)
                fcntl.flock(file, kind)
            yield file


class DiskLease:
    """A lease as an exclusive file lock, which the system releases when its process ends."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def take(self) -> bool:
        """Try to lock the file."""
        return _try_lock(self._file, fcntl.LOCK_EX)

    def release(self) -> None:
        """Unlock and close the file."""
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._file.close()


def _lock_file(path: str) -> BinaryIO:
    """Open a lock file, and create it if it does not exist."""
    with writing(path):
        return open(require_unlinked(path), "a+b")


def _try_lock(file: BinaryIO, kind: int) -> bool:
    """Lock a file without waiting. Returns False if another process holds it."""
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise StoreError(
            f"{file.name} cannot be locked",
            f"reason       {os.strerror(error.errno or 0)}",
            "The file system has no locks, or they are off (Lustre: mount it with flock; NFS: run its lock service).",
            "Use another --out, or a bucket, which needs none.",
        ) from error
    return True


def _holder(file: BinaryIO) -> int:
    """The process id in a lock file; 0 if the file contains something else."""
    file.seek(0)
    text = file.read(16).strip()
    return int(text) if text.isdigit() else 0
