"""File locks on a disk that several processes and machines share. The system releases them when the process ends.

The exclusive holder writes its process id into the lock file.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import BinaryIO

from tokenmill.errors import TRY_AGAIN, StoreError, UsageError
from tokenmill.storage.folder import Folder, Lease
from tokenmill.storage.local.files import open_regular, require_unlinked, writing

CLEANUP_SECONDS = 20.0  # a process that cleans up after others may hold the exclusive lock this long


@dataclass(frozen=True, slots=True)
class DiskLocks:
    """The locks of a folder on a disk, by the names of their files."""

    _folder: Folder

    @contextmanager
    def exclusive(self, name: str, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
        """Hold the folder alone; see Locks. The system releases the lock however the process ends."""
        with self._locked(name, fcntl.LOCK_EX, on_wait) as file:
            with writing(file.name):
                file.truncate(0)
                os.write(file.fileno(), b"%d\n" % os.getpid())
            yield

    @contextmanager
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
        with suppress(OSError):
            if os.listdir(self._folder.root) == [name]:
                os.unlink(self._folder.path(name))
                os.rmdir(self._folder.root)  # fails if another process has created a file meanwhile

    def lease(self, name: str) -> Lease:
        """A lease of that name, not yet taken."""
        return DiskLease(_lock_file(self._folder.path(f".{name}.lock")))

    def check_conditional_create(self) -> None:
        """Do nothing: a file system creates a name once."""

    @contextmanager
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
