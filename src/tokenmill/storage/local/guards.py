"""What a path must be before it is opened: somebody else may have put a link, a pipe or a device there."""

from __future__ import annotations

import contextlib
import os
import stat

from tokenmill.errors import CorruptStore, StoreError

MAX_BYTES = 1 << 30
"""A file that is larger is never read whole."""


def is_inside(root: str, path: str) -> bool:
    """Whether a path is below a directory, or it; both without links and dots."""
    return path == root or path.startswith(f"{root.rstrip('/')}/")


def require_regular_file(path: str) -> os.stat_result:
    """The status of a regular file: a pipe in its place would block whoever reads it, a device might never end."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise unreadable(path, error) from error
    if not stat.S_ISREG(status.st_mode):
        raise CorruptStore(f"{path} is not a regular file")
    return status


def require_unlinked(path: str) -> str:
    """The path of a file to be changed in place: a new one, or one with no other name, be it a link of any kind."""
    with contextlib.suppress(FileNotFoundError):
        status = os.lstat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
            raise CorruptStore(f"{path} is not a file of its own", "It is a link, or no regular file. Delete it.")
    return path


def truncated_error(path: str, expected_bytes: int) -> CorruptStore:
    """The error for a file of a store that does not have the bytes it should have."""
    return CorruptStore(f"{path} ends early", f"expected     {expected_bytes:,} bytes")


def check_size(path: str, size: int) -> int:
    """The size of a file that is about to be read whole, which may be anybody's; an error if it is absurd."""
    if size > MAX_BYTES:
        raise CorruptStore(f"{path} is too large", f"expected     at most {MAX_BYTES:,} bytes")
    return size


def unreadable(path: str, error: OSError) -> StoreError:
    """The error for a path that the system does not let us read."""
    return StoreError(f"cannot read {path}", f"reason       {os.strerror(error.errno or 0)}")
