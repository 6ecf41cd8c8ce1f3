"""A cache of whole Hub files in a directory. The name of a copy is its hash, which is checked after the download.

Beside a copy are its lock, and a record of its stat values (size, inode, times) when the hash was checked. A copy that
still has these values is used; any other one is hashed again. Links are never followed, for reading or for writing.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import stat
from functools import partial
from typing import BinaryIO

from tokenmill.errors import SourceError, StoreError
from tokenmill.storage.addresses import FileInfo, absolute
from tokenmill.storage.hub.files import fetch
from tokenmill.storage.local.disk import DiskFolder
from tokenmill.storage.local.files import sync_directory
from tokenmill.storage.range_file import CHUNK_BYTES, RangeFile

RECORD_BYTES = 1000  # more than any record has

_HASH = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")

# The stat values of copies that this process found correct: a record cannot be written everywhere.
_checked: dict[str, tuple[int, ...]] = {}


def kept_copy(fingerprint: str, size: int, directory: str) -> str | None:
    """The path of a copy with the right content; None if there is no copy."""
    path = os.path.join(absolute(directory), fingerprint)
    return path if _HASH.fullmatch(fingerprint) and _is_correct(path, fingerprint, size) else None


def local_copy(url: str, fingerprint: str, size: int, directory: str) -> str:
    """The path of a copy with the right content. Downloads the file if there is no copy."""
    if not _HASH.fullmatch(fingerprint):  # it becomes a file name
        raise SourceError(
            "the fingerprint of a source is not a hash", f"file         {url}", f"found        {fingerprint}"
        )
    folder = DiskFolder(directory)
    path = os.path.join(folder.root, fingerprint)
    try:
        if not _is_correct(path, fingerprint, size):
            os.makedirs(folder.root, exist_ok=True)
            with folder.locks.exclusive(f".{fingerprint}.lock", lambda _: None):
                if not _is_correct(path, fingerprint, size):  # another process may have downloaded it meanwhile
                    _download(path, url, fingerprint, size)
    except OSError as error:
        raise _cannot_keep(path, error) from error
    return path


def _is_correct(path: str, fingerprint: str, size: int) -> bool:
    """Whether there is a copy, a regular file, with this content."""
    values = _stat_values(path)
    if not values or values[0] != size:
        return False
    if _checked.get(path) == values or _recorded(path) == values:
        return True
    if not _has_hash(path, fingerprint, size) or _stat_values(path) != values:
        return False
    _record(path)
    return True


def _stat_values(path: str) -> tuple[int, ...]:
    """Values that change with the content of a file; empty if the path is not a regular file."""
    with contextlib.suppress(FileNotFoundError):
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode):
            return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
    return ()


def _has_hash(path: str, fingerprint: str, size: int) -> bool:
    digest = _digest(fingerprint, size)
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=0) as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest() == fingerprint


def _record_name(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.checked")


def _recorded(path: str) -> tuple[int, ...]:
    """The stat values in a copy's record, if this user has written it; otherwise empty."""
    with contextlib.suppress(OSError, ValueError):
        descriptor = os.open(_record_name(path), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
                return tuple(int(number) for number in file.read(RECORD_BYTES).split())
    return ()


def _record(path: str) -> None:
    """Record the stat values of a correct copy. If the record cannot be written, each process hashes the copy once."""
    values, name = _stat_values(path), _record_name(path)
    _checked[path] = values
    with contextlib.suppress(OSError), _new_file(name) as file:
        file.write(" ".join(map(str, values)).encode())


def _new_file(path: str) -> BinaryIO:
    """A new file in place of what is at a path, which may be a link or a pipe."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    return open(path, "xb")


def _download(path: str, url: str, fingerprint: str, size: int) -> None:
    """Download a file and check its hash. On any error nothing is kept. The caller holds the lock of the file."""
    directory = os.path.dirname(path)
    temporary = os.path.join(directory, f".{fingerprint}.tmp")
    try:
        with _new_file(temporary) as file:
            _copy(file, url, fingerprint, size)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
    sync_directory(directory)
    _record(path)


def _copy(file: BinaryIO, url: str, fingerprint: str, size: int) -> None:
    digest = _digest(fingerprint, size)
    content = RangeFile(FileInfo(url, size, fingerprint), partial(fetch, url, fingerprint), [(0, size)])
    with content:  # it fetches the next chunks in the background
        while chunk := content.read(CHUNK_BYTES):
            digest.update(chunk)
            file.write(chunk)
    if digest.hexdigest() != fingerprint:
        raise SourceError(
            "a file of the Hub does not have the hash that the Hub states",
            f"file         {url}",
            f"expected     {fingerprint}",
            f"found        {digest.hexdigest()}",
            "The download was damaged and is not kept. Run the same command again.",
        )


def _digest(fingerprint: str, size: int) -> hashlib._Hash:
    """The hash of a fingerprint: SHA-256, or for a small file SHA-1 of its git blob, which begins with a header."""
    return hashlib.sha256() if len(fingerprint) == 64 else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def _cannot_keep(path: str, error: OSError) -> StoreError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = f"{'Free some space, or name' if is_full else 'Name'} another directory with --cache."
    return StoreError("cannot keep a file of the Hub", f"file         {path}", f"reason       {reason}", advice)
