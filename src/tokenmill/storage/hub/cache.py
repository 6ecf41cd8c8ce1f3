"""Whole files of the Hub, kept in a directory under their hashes: fetched once, whoever wants them, and checked."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import BinaryIO

import pyarrow as pa

from tokenmill.errors import SourceError, StoreError
from tokenmill.storage.addresses import absolute
from tokenmill.storage.hub.files import fetch
from tokenmill.storage.writing import sync_directory

PIECE_BYTES = 8 << 20
THREADS = 4
"""How many pieces are on their way at once."""

_HASH = re.compile("[0-9a-f]{40}|[0-9a-f]{64}")


def kept_copy(fingerprint: str, size: int, directory: str) -> str | None:
    """The path of a copy of a file, if there is one."""
    path = os.path.join(absolute(directory), fingerprint)
    return path if _HASH.fullmatch(fingerprint) and _is_whole(path, size) else None


def local_copy(url: str, fingerprint: str, size: int, directory: str) -> str:
    """The path of a copy of a file, which is fetched if there is none of its hash and size yet."""
    if not _HASH.fullmatch(fingerprint):  # it becomes a name
        raise SourceError(
            "the fingerprint of a source is no hash", f"file         {url}", f"found        {fingerprint}"
        )
    path = os.path.join(absolute(directory), fingerprint)
    try:
        if _is_whole(path, size):
            return path
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with _unfinished(os.path.join(os.path.dirname(path), f".{fingerprint}.tmp")) as file:
            if _is_whole(path, size):  # by somebody else, while we waited
                os.unlink(file.name)
            else:
                _fill(file, url, fingerprint, size)
                os.replace(file.name, path)
                sync_directory(os.path.dirname(path))
    except OSError as error:
        raise _cannot_keep(path, error) from error
    return path


def _is_whole(path: str, size: int) -> bool:
    """Whether there is a copy. It was compared with its hash before it got its name."""
    with contextlib.suppress(FileNotFoundError):
        return os.stat(path).st_size == size
    return False


@contextlib.contextmanager
def _unfinished(path: str) -> Iterator[BinaryIO]:
    """The file to write to, which nobody else writes to: it is its own lock, so that none is left behind."""
    while True:
        with open(path, "ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if _is_still(path, file):
                yield file
                return


def _is_still(path: str, file: BinaryIO) -> bool:
    """Whether a file still has its name: who had the lock before may have finished, or given up."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.stat(path), os.fstat(file.fileno()))
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
    # A small file is known by its hash in git, which counts a header, too.
    digest = hashlib.sha256() if len(fingerprint) == 64 else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
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
