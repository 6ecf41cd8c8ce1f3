"""Locks on files of a disk that several processes, and machines, share; the system releases them with their holders.

Whoever holds a folder for itself writes its process number into the file.
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
from tokenmill.storage.local.writing import write_error

ALONE = fcntl.LOCK_EX
TOGETHER = fcntl.LOCK_SH


@contextmanager
def locked(
    folder: str, path: str, kind: int, waiting: Callable[[str], None] | None = None, patience_seconds: float = 0.0
) -> Iterator[BinaryIO]:
    """Hold the lock of a folder. If others do, that is an error, after a while; or `waiting` is told who they are."""
    with lock_file(path) as file:
        until = time.monotonic() + patience_seconds
        while not (taken := try_lock(file, kind)) and time.monotonic() < until:
            time.sleep(0.1)
        if not taken:
            owner = str(holder(file) or "several, on one or more machines")
            if waiting is None:
                raise UsageError(
                    f"another run is writing to {folder}",
                    f"process      {owner}",
                    "Wait for it to end, stop it, or use another --out.",
                    exit_code=TRY_AGAIN,
                )
            waiting(owner)
            fcntl.flock(file, kind)
        yield file


def lock_file(path: str) -> BinaryIO:
    """The file of a lock, made if there is none."""
    try:
        return open(require_unlinked(path), "a+b")
    except OSError as error:
        raise write_error(path, error) from error


def try_lock(file: BinaryIO, kind: int) -> bool:
    """Lock a file, if nobody else has; whether it was."""
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
    """The process that wrote its number into a lock; 0 if that is not what is in it."""
    file.seek(0)
    text = file.read(16).strip()
    return int(text) if text.isdigit() else 0
