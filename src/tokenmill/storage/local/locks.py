"""File locks on a disk that several processes and machines share. The system releases them when the process ends.

The exclusive holder writes its process id into the lock file.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from tokenmill.errors import TRY_AGAIN, StoreError, UsageError
from tokenmill.storage.local.guards import require_unlinked
from tokenmill.storage.local.writing import writing

EXCLUSIVE = fcntl.LOCK_EX
SHARED = fcntl.LOCK_SH


@contextmanager
def locked(
    folder: str, path: str, kind: int, on_wait: Callable[[str], None] | None = None, timeout_seconds: float = 0.0
) -> Iterator[BinaryIO]:
    """Hold the lock file of a folder.

    If other processes hold it after the timeout, `on_wait` is called with their description and the call blocks.
    Without `on_wait` UsageError is raised.
    """
    with lock_file(path) as file:
        deadline = time.monotonic() + timeout_seconds
        while not (taken := try_lock(file, kind)) and time.monotonic() < deadline:
            time.sleep(0.1)
        if not taken:
            owner = str(holder(file) or "several, on one or more machines")
            if on_wait is None:
                raise UsageError(
                    f"another run is writing to {folder}",
                    f"process      {owner}",
                    "Wait for it to end, stop it, or use another --out.",
                    exit_code=TRY_AGAIN,
                )
            on_wait(owner)
            fcntl.flock(file, kind)
        yield file


def lock_file(path: str) -> BinaryIO:
    """Open a lock file, and create it if it does not exist."""
    with writing(path):
        return open(require_unlinked(path), "a+b")


def try_lock(file: BinaryIO, kind: int) -> bool:
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


def holder(file: BinaryIO) -> int:
    """The process id in a lock file; 0 if the file contains something else."""
    file.seek(0)
    text = file.read(16).strip()
    return int(text) if text.isdigit() else 0
