"""Sources: found by path, directory or glob, and opened for reading."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass
from stat import S_ISREG

import pyarrow as pa

from tokenmill.errors import SourceError


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file as it stands now. The fingerprint changes when the content does."""

    path: str
    size: int
    fingerprint: str


def absolute(path: str) -> str:
    """The path in the form that is stored: absolute, with `~` and `..` resolved."""
    path = os.path.abspath(os.path.expanduser(path))
    return path[1:] if path.startswith("//") else path  # which POSIX lets mean something else, and no system does


def stat(path: str) -> FileInfo:
    """Size and fingerprint of one file."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise SourceError(f"cannot read {path}", os.strerror(error.errno or 0)) from error
    except ValueError as error:  # a NUL in the path
        raise SourceError(f"cannot read {path!r}", str(error)) from error
    if not S_ISREG(status.st_mode):  # a pipe would block whoever opens it, a device might never end
        raise SourceError(f"{path} is not a regular file", "Write what it gives to a file, and use that.")
    return FileInfo(path, status.st_size, f"{status.st_size}-{status.st_mtime_ns}")


def find(pattern: str) -> tuple[bool, list[FileInfo]]:
    """The files that a path, directory or glob names, unordered.

    The first value tells whether the files were named one by one (a path or a glob) or found by walking a directory.
    """
    if "://" in pattern:
        scheme = pattern.partition("://")[0]
        raise SourceError(f"{scheme}:// sources cannot be read yet", "Copy the files to a local disk first.")
    path = absolute(pattern)
    if os.path.isdir(path):
        return False, list(_walk(path))
    if os.path.exists(path):
        return True, [stat(path)]
    if glob.has_magic(pattern):
        matches = glob.glob(path, recursive=True)
        files = [stat(match) for match in matches if os.path.isfile(match)]
        if files:
            return True, files
        raise SourceError(f"no file matches {pattern}", f"looked for   {path}")
    raise SourceError(f"no such file or directory: {pattern}", f"looked for   {path}")


def _walk(directory: str) -> Iterator[FileInfo]:
    """Every file below a directory, hidden ones left out."""
    pending = [directory]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.name.startswith("."):
                        continue
                    if entry.is_dir():
                        pending.append(entry.path)
                    elif entry.is_file():
                        status = entry.stat()
                        yield FileInfo(entry.path, status.st_size, f"{status.st_size}-{status.st_mtime_ns}")
        except OSError as error:
            raise SourceError(f"cannot list {error.filename}", os.strerror(error.errno or 0)) from error


def open_input(path: str) -> pa.NativeFile:
    """A file opened for random access.

    Plain reads rather than a memory map: a source that shrinks under a map kills the process with SIGBUS, a short read
    is an error that can be told.
    """
    stat(path)
    try:
        return pa.OSFile(path, "rb")
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SourceError(f"cannot open {path}", reason) from error


def read_start(path: str, limit_bytes: int) -> bytes:
    """The first bytes of a file, all of them if it is short."""
    try:
        with open_input(path) as file:
            return bytes(file.read(limit_bytes))
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SourceError(f"cannot read {path}", reason) from error
