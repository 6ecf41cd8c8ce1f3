"""Whole files of the Hub, kept in a directory under their hashes: fetched once and compared with their hash.

Beside a copy lies a record of how the system described it (inode, size, times) when it had the right hash. A copy that
still looks so is used; any other one is hashed again. Links are never followed: not to a copy, and not to write one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import stat
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

import pyarrow as pa

from tokenmill.errors import SourceError, StoreError
from tokenmill.storage.addresses import absolute
from tokenmill.storage.hub.files import fetch
from tokenmill.storage.local.writing import sync_directory

PIECE_BYTES = 8 << 20
THREADS = 4
"""How many pieces are on their way at once."""

RECORD_BYTES = 1000
"""More than any record has."""

_HASH = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


def kept_copy(fingerprint: str, size: int, directory: str) -> str | None:
    """The path of a copy of a file, if there is one that has the right content."""
    path = os.path.join(absolute(directory), fingerprint)
    return path if _HASH.fullmatch(fingerprint) and _is_right(path, fingerprint, size) else None


def local_copy(url: str, fingerprint: str, size: int, directory: str) -> str:
    """The path of a copy of a file, which is fetched if there is none with the right content yet."""
    if not _HASH.fullmatch(fingerprint):  # it becomes a name
        raise SourceError(
            "the fingerprint of a source is no hash", f"file         {url}", f"found        {fingerprint}"
        )
    path = os.path.join(absolute(directory), fingerprint)
    try:
        if _is_right(path, fingerprint, size):
            return path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with _unfinished(os.path.join(os.path.dirname(path), f".{fingerprint}.tmp")) as file:
            if _is_right(path, fingerprint, size):  # another process has fetched it meanwhile
                os.unlink(file.name)
            else:
                _fill(file, url, fingerprint, size)
                os.replace(file.name, path)
                sync_directory(os.path.dirname(path))
                _record(path)
    except OSError as error:
        raise _cannot_keep(path, error) from error
    return path


def _is_right(path: str, fingerprint: str, size: int) -> bool:
    """Whether there is a copy, a file of its own, with this content."""
    looks = _looks(path)
    if not looks or looks[0] != size:
        return False
    if _seen.get(path) == looks or _recorded(path) == looks:
        return True
    if not _has_hash(path, fingerprint, size) or _looks(path) != looks:
        return False
    _record(path)
    return True


_seen: dict[str, tuple[int, ...]] = {}
"""How the copies looked that this process found to be right: a record cannot be written everywhere."""


def _looks(path: str) -> tuple[int, ...]:
    """How the system describes a file: this changes with its content; empty if it is not a file, or a link."""
    with contextlib.suppress(FileNotFoundError):
        status = os.lstat(path)
        if stat.S_ISREG(status.st_mode):
            return status.st_size, status.st_ino, status.st_mtime_ns, status.st_ctime_ns
    return ()


def _has_hash(path: str, fingerprint: str, size: int) -> bool:
    digest = _digest(fingerprint, size)
    with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW), "rb", buffering=0) as file:
        while piece := file.read(PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest() == fingerprint


def _record_name(path: str) -> str:
    directory, name = os.path.split(path)
    return os.path.join(directory, f".{name}.checked")


def _recorded(path: str) -> tuple[int, ...]:
    """How a copy looked when it was right, if this user has written it down."""
    name = _record_name(path)
    with contextlib.suppress(OSError, ValueError), open(name, "rb", opener=_without_links) as file:
        status = os.fstat(file.fileno())
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            return tuple(int(number) for number in file.read(RECORD_BYTES).split())
    return ()


def _record(path: str) -> None:
    """Write down how a copy looks that is right; where that cannot be written, each process hashes it once."""
    looks, name = _looks(path), _record_name(path)
    _seen[path] = looks
    with contextlib.suppress(OSError):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        with open(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as file:
            file.write(" ".join(map(str, looks)).encode())


@contextlib.contextmanager
def _unfinished(path: str) -> Iterator[BinaryIO]:
    """The file to write to, which no other process writes to: it is its own lock, so that none is left behind."""
    while True:
        with _opened(path) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_still(path, file):
                yield file
                return


def _opened(path: str) -> BinaryIO:
    """The file opened for writing; a link, a second name of another file, or a pipe gives way to a new file."""
    while True:
        if not _is_own(path):
            os.unlink(path)
        try:
            return open(path, "ab", opener=_without_links)
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.ENXIO):  # a link or a pipe that was made just now
                raise


def _is_own(path: str) -> bool:
    """Whether a name is that of a file which has no other name, or is free."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return True
    return stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _without_links(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)


def _is_still(path: str, file: BinaryIO) -> bool:
    """Whether a file still has its name, and no other one: who had the lock before may have finished, or given up."""
    with contextlib.suppress(FileNotFoundError):
        return _is_own(path) and os.path.samestat(os.lstat(path), os.fstat(file.fileno()))
    return False


def _fill(file: BinaryIO, url: str, fingerprint: str, size: int) -> None:
    """Fetch a file and compare it with its hash; what is wrong is not kept."""
    file.truncate(0)
    try:
        _copy(file, url, fingerprint, size)
        file.flush()
        os.fsync(file.fileno())
    except BaseException:
        os.unlink(file.name)
        raise


def _copy(file: BinaryIO, url: str, fingerprint: str, size: int) -> None:
    digest = _digest(fingerprint, size)
    for piece in _pieces(url, fingerprint, size):
        digest.update(piece)
        file.write(piece)
    if digest.hexdigest() != fingerprint:
        raise SourceError(
            "a file of the Hub does not have the hash that the Hub states",
            f"file         {url}",
            f"expected     {fingerprint}",
            f"found        {digest.hexdigest()}",
            "It was damaged on its way, and is not kept. Run the same command again.",
        )


def _digest(fingerprint: str, size: int) -> hashlib._Hash:
    """The hash that a fingerprint is of. A small file is known by its hash in git, which counts a header, too."""
    return hashlib.sha256() if len(fingerprint) == 64 else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)


def _pieces(url: str, fingerprint: str, size: int) -> Iterator[pa.Buffer]:
    """The content of a file in order, the next pieces on their way."""
    coming: deque[Future[pa.Buffer]] = deque()
    with ThreadPoolExecutor(THREADS) as pool:
        try:
            for start in range(0, size, PIECE_BYTES):
                coming.append(pool.submit(fetch, url, fingerprint, start, min(start + PIECE_BYTES, size)))
                if len(coming) == THREADS:
                    yield coming.popleft().result()
            while coming:
                yield coming.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _cannot_keep(path: str, error: OSError) -> StoreError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    advice = f"{'Free some space, or name' if full else 'Name'} another directory with --cache."
    return StoreError("cannot keep a file of the Hub", f"file         {path}", f"reason       {reason}", advice)
