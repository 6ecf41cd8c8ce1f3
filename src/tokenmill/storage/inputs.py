"""Find sources by path, directory or glob, and open them for reading, local or remote."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from dataclasses import dataclass
from stat import S_ISREG
from types import ModuleType

import pyarrow as pa

from tokenmill.errors import USAGE, SourceError
from tokenmill.storage.addresses import HUB, OBJECT_STORES, FileInfo, absolute, scheme
from tokenmill.storage.globs import fixed_prefix
from tokenmill.storage.local.listing import (
    Identity,
    Listing,
    SkippedEntry,
    did_you_mean,
    file_info,
    identity_of,
    kind_of_special,
    match,
    walk,
    without_skipped,
)
from tokenmill.storage.objects.errors import changed
from tokenmill.storage.range_file import RangeFile, Span, prefetch_spans
from tokenmill.system.storage_settings import StorageSettings, current, run

HUB_NAMES = 5  # parts of a Hub address before the path of a file: hf:, an empty one, datasets, ORG, NAME@REVISION


def _remote(address: str) -> ModuleType | None:
    """The module that reads from an address; None for a local path."""
    kind = scheme(address)
    if not kind:
        return None
    if kind in OBJECT_STORES:
        from tokenmill.storage.objects import read  # noqa: PLC0415 - loads the client

        return read
    if kind == HUB:
        from tokenmill.storage.hub import listing  # noqa: PLC0415 - loads the client

        return listing
    schemes = " ".join(f"{name}://" for name in (*OBJECT_STORES, HUB))
    raise SourceError(f"{kind}:// is not known", f"given        {address}", f"known        {schemes}")


def stat(path: str) -> FileInfo:
    """Size and fingerprint of one file."""
    remote = _remote(path)
    if remote is not None:
        info: FileInfo = remote.stat(path)
        return info
    try:
        status = os.stat(path)
    except OSError as error:
        raise SourceError(f"cannot read {path}", os.strerror(error.errno or 0)) from error
    except ValueError as error:  # a NUL in the path
        raise SourceError(f"cannot read {path!r}", str(error)) from error
    if not S_ISREG(status.st_mode):  # a pipe would block the reader, a device might never end
        kind = f"kind         {kind_of_special(status.st_mode)}"
        raise SourceError(f"{path} is not a regular file", kind, "Write its content to a file, and use that file.")
    return file_info(path, status, is_link=os.path.islink(path))


def find(pattern: str, skip: SkippedEntry) -> Listing:
    """The files that a path, directory or glob names, except those in directories that `skip` selects."""
    remote = _remote(pattern)
    if remote is not None:
        is_named, files = remote.find(pattern)
        return without_skipped(_listed_root(pattern, files), files, skip, is_named=is_named)
    path = absolute(pattern)
    if os.path.isdir(path):
        return walk(path, skip)
    if os.path.lexists(path):
        return Listing([stat(path)])
    if glob.has_magic(pattern):
        listing = match(path, skip)
        if listing.files or listing.skipped or listing.special:
            return listing
        raise SourceError(f"no file matches {pattern}", f"looked for   {path}", exit_code=USAGE)
    raise SourceError(
        f"no such file or directory: {pattern}", f"looked for   {path}", *did_you_mean(path), exit_code=USAGE
    )


def identity_at(address: str) -> Identity | None:
    """The identity of a file or directory, the same for every path to it; None if it does not exist."""
    path = absolute(address)
    if scheme(path):
        return path
    try:
        return identity_of(os.stat(path), path)
    except (OSError, ValueError):
        return None


def _listed_root(pattern: str, files: list[FileInfo]) -> str:
    """The address of the directory that was listed for a pattern. On the Hub it contains the commit."""
    if scheme(pattern) != HUB:
        return fixed_prefix(absolute(pattern))
    from tokenmill.storage.hub.address import parse  # noqa: PLC0415 - only for the Hub

    dataset = "/".join(files[0].path.split("/")[:HUB_NAMES]) if files else ""
    return f"{dataset}/{fixed_prefix(parse(pattern).path)}".rstrip("/")


def open_input(file: FileInfo, expected: Sequence[Span] = (), *, keep: bool = False) -> pa.NativeFile:
    """Open a file for random access. The expected byte ranges of a remote file are prefetched.

    With `keep`, a file of the Hub is first copied whole into the cache directory, if one is set.

    Local files are read, not memory-mapped: a source that shrinks under a map kills the process with SIGBUS, while a
    short read is an ordinary error.
    """
    path = _local_path(file, keep=keep)
    if path is None:
        return pa.PythonFile(RangeFile(file, _RemoteVersion(file, current()), expected), mode="r")
    stat(path)
    try:
        return pa.OSFile(path, "rb")
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SourceError(f"cannot open {path}", reason) from error


def prefetch(file: FileInfo, expected: Sequence[Span]) -> None:
    """Start to fetch byte ranges of a remote file, unless whole files of its kind are cached."""
    is_cached = scheme(file.path) == HUB and current().cache_directory is not None
    if scheme(file.path) and not is_cached:
        prefetch_spans(_RemoteVersion(file, current()), expected)


def read_start(file: FileInfo, limit_bytes: int) -> bytes:
    """The first `limit_bytes` bytes of a file, or all of a shorter one."""
    try:
        with open_input(file, [(0, min(limit_bytes, file.size))]) as stream:
            return bytes(stream.read(limit_bytes))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SourceError(f"cannot read {file.path}", reason) from error


def check_unchanged(file: FileInfo) -> None:
    """Raise if a local file has changed. Remote files need no check: every read asks for one version."""
    if scheme(file.path):
        return
    now = stat(file.path)
    if now.fingerprint != file.fingerprint:
        expected, found = (f"{info.size} bytes (fingerprint {info.fingerprint})" for info in (file, now))
        raise changed(file.path, expected, found)


def _local_path(file: FileInfo, *, keep: bool) -> str | None:
    """The path of a local file, or of the cached copy of a Hub file, which `keep` makes; None without one."""
    if not scheme(file.path):
        return file.path
    directory = current().cache_directory
    if directory is None or scheme(file.path) != HUB:
        return None
    from tokenmill.storage.hub.listing import kept_copy, local_copy  # noqa: PLC0415 - loads the client

    if not keep:
        return kept_copy(file.fingerprint, file.size, directory)
    return local_copy(file.path, file.fingerprint, file.size, directory)


@dataclass(frozen=True, slots=True)
class _RemoteVersion:
    """Reads byte ranges of one version of a remote file, in any thread, with the settings of when it was opened."""

    file: FileInfo
    settings: StorageSettings

    def __call__(self, start: int, stop: int) -> pa.Buffer:
        """The bytes from start to stop."""
        remote = _remote(self.file.path)
        if remote is None:
            raise SourceError(f"{self.file.path} is not behind a network")
        data: pa.Buffer = run(self.settings, remote.fetch, self.file.path, self.file.fingerprint, start, stop)
        return data
