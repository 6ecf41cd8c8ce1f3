"""Directories of this user below a directory that others can write to, such as the temporary directory.

Another user could create the directory first, under the expected name, and change its files later.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable

from tokenmill.errors import StoreError
from tokenmill.storage.local.writing import writing

ROOT = 0
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


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
