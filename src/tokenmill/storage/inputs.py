"""Sources: found by path, directory or glob, and opened for reading, wherever they are."""

from __future__ import annotations

import functools
import glob
import os
from collections.abc import Sequence
from stat import S_ISREG
from types import ModuleType

import pyarrow as pa

from tokenmill.errors import SourceError
from tokenmill.storage import range_file
from tokenmill.storage.addresses import HUB, OBJECT_STORES, FileInfo, absolute, scheme
from tokenmill.storage.globs import fixed_prefix
from tokenmill.storage.local.listing import (
    EVERYTHING,
    Identity,
    Listing,
    SkippedEntry,
    file_info,
    identity_of,
    kind_of_special,
    match,
    walk,
    without_apart,
)
from tokenmill.storage.objects.errors import changed
from tokenmill.storage.range_file import Fetch, RangeFile, Span
from tokenmill.system import environment

HUB_NAMES = 5
"""How many names, between slashes, the address of a dataset on the Hub has before the path of a file."""


def _remote(address: str) -> ModuleType | None:
    """The module that reads what is at an address, or None for a disk."""
    kind = scheme(address)
    if not kind:
        return None
    if kind in OBJECT_STORES:
        from tokenmill.storage.objects import read  # noqa: PLC0415 - loads the client

        return read
    if kind == HUB:
        from tokenmill.storage.hub import listing  # noqa: PLC0415 - loads the client

        return listing
    known = " ".join(f"{name}://" for name in (*OBJECT_STORES, HUB))
    raise SourceError(f"{kind}:// is not known", f"given        {address}", f"known        {known}")


def stat(path: str) -> FileInfo:
    """Size and fingerprint of one file."""
    remote = _remote(path)
    if remote is not None:
        found: FileInfo = remote.stat(path)
        return found
    try:
        status = os.stat(path)
    except OSError as error:
        raise SourceError(f"cannot read {path}", os.strerror(error.errno or 0)) from error
    except ValueError as error:  # a NUL in the path
        raise SourceError(f"cannot read {path!r}", str(error)) from error
    if not S_ISREG(status.st_mode):  # a pipe would block whoever opens it, a device might never end
        kind = f"kind         {kind_of_special(status.st_mode)}"
        raise SourceError(f"{path} is not a regular file", kind, "Write what it gives to a file, and use that.")
    return file_info(path, status, is_link=os.path.islink(path))


def find(pattern: str, apart: SkippedEntry = EVERYTHING) -> Listing:
    """The files that a path, directory or glob names, without those in directories that are to be kept `apart`."""
    remote = _remote(pattern)
    if remote is not None:
        is_named, files = remote.find(pattern)
        return without_apart(_listed_root(pattern, files), files, apart, is_named=is_named)
    path = absolute(pattern)
    if os.path.isdir(path):
        return walk(path, apart)
    if os.path.lexists(path):
        return Listing([stat(path)])
    if glob.has_magic(pattern):
        found = match(path, apart)
        if found.files or found.apart or found.special:
            return found
        raise SourceError(f"no file matches {pattern}", f"looked for   {path}")
    raise SourceError(f"no such file or directory: {pattern}", f"looked for   {path}")


def identity_at(address: str) -> Identity | None:
    """What tells a file or directory apart from all others, whatever path leads to it; None if there is none."""
    path = absolute(address)
    if scheme(path):
        return path
    try:
        return identity_of(os.stat(path), path)
    except (OSError, ValueError):
        return None


def _listed_root(pattern: str, files: list[FileInfo]) -> str:
    """The address of the directory that was listed for a pattern; that of the Hub has a commit in it."""
    if scheme(pattern) != HUB:
        return fixed_prefix(absolute(pattern))
    from tokenmill.storage.hub.address import parse  # noqa: PLC0415 - only for the Hub

    dataset = "/".join(files[0].path.split("/")[:HUB_NAMES]) if files else ""
    return f"{dataset}/{fixed_prefix(parse(pattern).path)}".rstrip("/")


def open_input(file: FileInfo, expected: Sequence[Span] = (), *, keep: bool = False) -> pa.NativeFile:
    """A file opened for random access; what is expected to be read is fetched ahead where that takes a network.

    With `keep`, all of a file of the Hub is fetched and kept instead, if there is a place to keep it in.

    Plain reads of a disk rather than a memory map: a source that shrinks under a map kills the process with SIGBUS, a
    short read is an error that can be told.
    """
    path = _local(file, keep=keep)
    if path is None:
        return pa.PythonFile(RangeFile(file, _fetch(file), expected), mode="r")
    stat(path)
    try:
        return pa.OSFile(path, "rb")
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SourceError(f"cannot open {path}", reason) from error


def prefetch(file: FileInfo, expected: Sequence[Span]) -> None:
    """Begin to fetch what will be read of a file soon, if that takes a network and no whole copy of it is kept."""
    kept = scheme(file.path) == HUB and environment.cache() is not None
    if scheme(file.path) and not kept:
        range_file.prefetch(file, _fetch(file), expected)


def read_start(file: FileInfo, limit_bytes: int) -> bytes:
    """The first bytes of a file, all of them if it is short."""
    try:
        with open_input(file, [(0, min(limit_bytes, file.size))]) as stream:
            return bytes(stream.read(limit_bytes))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SourceError(f"cannot read {file.path}", reason) from error


def check_unchanged(file: FileInfo) -> None:
    """Raise if a file is not what it was. One behind a network is only ever read in the version that is asked for."""
    if scheme(file.path):
        return
    found = stat(file.path)
    if found.fingerprint != file.fingerprint:
        sizes = [f"{each.size} bytes (fingerprint {each.fingerprint})" for each in (file, found)]
        raise changed(file.path, *sizes)


def _local(file: FileInfo, *, keep: bool) -> str | None:
    """The path of a file that can be opened: its own, or that of a copy which is kept of it, or shall be."""
    if not scheme(file.path):
        return file.path
    directory = environment.cache()
    if directory is None or scheme(file.path) != HUB:
        return None
    from tokenmill.storage.hub.listing import kept_copy, local_copy  # noqa: PLC0415 - loads the client

    if not keep:
        return kept_copy(file.fingerprint, file.size, directory)
    return local_copy(file.path, file.fingerprint, file.size, directory)


def _fetch(file: FileInfo) -> Fetch:
    remote = _remote(file.path)
    if remote is None:
        raise SourceError(f"{file.path} is not behind a network")
    fetch: Fetch = functools.partial(remote.fetch, file.path, file.fingerprint)
    return fetch
