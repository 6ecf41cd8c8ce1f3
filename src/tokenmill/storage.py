"""Files: list, open, publish. The only module that knows file systems.

Paths are plain strings. A file is published whole or not at all: written under a temporary name, synced, then renamed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import io
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO

import pyarrow as pa

from tokenmill.errors import CorruptStore, SourceError, StoreError, UsageError

TEMPORARY_SUFFIX = ".tmp"
EAGER_BYTES = 8 << 20

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")
"""What `publish` calls a file before it is whole. Other people's files may end alike."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """A file as it stands now. The fingerprint changes when the content does."""

    path: str
    size: int
    fingerprint: str


def absolute(path: str) -> str:
    """The path in the form that is stored: absolute, with `~` and `..` resolved."""
    return os.path.abspath(os.path.expanduser(path))


def stat(path: str) -> FileInfo:
    """Size and fingerprint of one file."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise SourceError(f"cannot read {path}", os.strerror(error.errno or 0)) from error
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
    try:
        return pa.OSFile(path, "rb")
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise SourceError(f"cannot open {path}", reason) from error


def read_start(path: str, limit_bytes: int) -> bytes:
    """The first bytes of a file, all of them if it is short."""
    with open_input(path) as file:
        return bytes(file.read(limit_bytes))


class Folder:
    """A directory of published files, addressed by names relative to it."""

    def __init__(self, root: str) -> None:
        if "://" in root:
            raise UsageError(f"stores cannot be at {root.partition('://')[0]}:// yet", "Use a local directory.")
        self.root = absolute(root)

    def path(self, name: str) -> str:
        """The full path of a name, which must stay inside the folder."""
        path = os.path.normpath(os.path.join(self.root, name))
        if os.path.isabs(name) or os.path.commonpath([self.root, path]) != self.root:
            raise StoreError(f"the name {name!r} points outside {self.root}")
        return path

    def create(self, name: str = ".") -> None:
        """Make the folder, or one inside it, with its parents."""
        try:
            os.makedirs(self.path(name), exist_ok=True)
        except OSError as error:
            raise _write_error(self.path(name), error) from error

    def exists(self, name: str) -> bool:
        """Whether a file of that name has been published."""
        return os.path.exists(self.path(name))

    def names(self, directory: str) -> list[str]:
        """The names of the published files directly inside a directory, unordered; none if it does not exist."""
        try:
            with os.scandir(self.path(directory)) as entries:
                return [entry.name for entry in entries if not entry.name.endswith(TEMPORARY_SUFFIX)]
        except FileNotFoundError:
            return []

    def size(self, name: str) -> int:
        """The size of a file in bytes."""
        return os.path.getsize(self.path(name))

    def read(self, name: str, limit_bytes: int | None = None) -> bytes:
        """The content of a file, or its first bytes."""
        try:
            with open(self.path(name), "rb") as file:
                return file.read() if limit_bytes is None else file.read(limit_bytes)
        except OSError as error:
            raise StoreError(f"cannot read {self.path(name)}", os.strerror(error.errno or 0)) from error

    def chunks(self, name: str, start: int, count: int) -> Iterator[bytes]:
        """A stretch of a file, a mebibyte at a time."""
        try:
            with open(self.path(name), "rb") as file:
                file.seek(start)
                for place in range(0, count, 1 << 20):
                    yield file.read(min(1 << 20, count - place))
        except OSError as error:
            raise StoreError(f"cannot read {self.path(name)}", os.strerror(error.errno or 0)) from error

    def read_at(self, name: str, start: int, count: int) -> bytes:
        """Exactly these bytes of a file."""
        try:
            with open(self.path(name), "rb", buffering=0) as file:
                file.seek(start)
                data = _exactly(file, count)
        except OSError as error:
            raise StoreError(f"cannot read {self.path(name)}", os.strerror(error.errno or 0)) from error
        if len(data) < count:
            raise CorruptStore(f"{self.path(name)} ends early", f"expected     {start + count:,} bytes")
        return data

    def read_end(self, name: str, limit_bytes: int) -> bytes:
        """The last bytes of a file, all of them if it is short."""
        with open(self.path(name), "rb") as file:
            file.seek(max(0, os.path.getsize(file.fileno()) - limit_bytes))
            return file.read(limit_bytes)

    def map(self, name: str) -> pa.NativeFile:
        """A published, and therefore immutable, file as a memory map."""
        try:
            return pa.memory_map(self.path(name), "rb")
        except OSError as error:
            raise StoreError(f"cannot open {self.path(name)}", str(error)) from error

    @contextlib.contextmanager
    def publish(self, name: str, *, settled: bool = True) -> Iterator[BinaryIO]:
        """Write a file that appears under its name when the block ends, complete, or never.

        If `settled`, the name survives a loss of power from then on; if not, from the next `settle` on.
        """
        path = self.path(name)
        temporary = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}"
        try:
            with io.BufferedWriter(_Eager(temporary, "xb")) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            if settled:
                _sync_directory(os.path.dirname(path))
        except OSError as error:
            raise _write_error(path, error) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    @contextlib.contextmanager
    def fill(self, name: str, size: int, start: int) -> Iterator[BinaryIO]:
        """Write a stretch of a file that several writers fill; it appears under its name when it is sealed.

        One that was sealed before is opened up again.
        """
        path = self.path(_unsealed(name))
        try:
            if not os.path.exists(path):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(self.path(name), path)
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
            with io.BufferedWriter(_Eager(descriptor, "wb")) as file:
                if os.path.getsize(descriptor) != size:
                    os.ftruncate(descriptor, size)
                file.seek(start)
                yield file
                file.flush()
                os.fsync(descriptor)
        except OSError as error:
            raise _write_error(path, error) from error

    def filled_bytes(self, name: str) -> int | None:
        """The size of a file, be it sealed or not; None if there is none."""
        for path in (self.path(_unsealed(name)), self.path(name)):
            with contextlib.suppress(FileNotFoundError):
                return os.path.getsize(path)
        return None

    def seal(self, name: str, size: int) -> None:
        """Publish a file whose stretches have all been filled; nothing happens if that was done before."""
        if self.filled_bytes(name) != size:
            raise StoreError(f"{self.path(name)} has gone while it was written", "Run the same command again.")
        try:
            if os.path.exists(self.path(_unsealed(name))):
                os.replace(self.path(_unsealed(name)), self.path(name))
            _sync_directory(os.path.dirname(self.path(name)))
        except OSError as error:
            raise _write_error(self.path(name), error) from error

    def settle(self, directory: str) -> None:
        """Make the names of the files in a directory survive a loss of power."""
        try:
            _sync_directory(self.path(directory))
        except OSError as error:
            raise _write_error(self.path(directory), error) from error

    def append(self, name: str, data: bytes) -> None:
        """Add bytes to the end of a file in one write, so that lines of several writers do not mix."""
        try:
            descriptor = os.open(self.path(name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise _write_error(self.path(name), error) from error

    def discard(self, name: str) -> None:
        """Remove a file, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(name))

    def remove(self, directory: str) -> None:
        """Remove a directory of files, if it is there."""
        try:
            shutil.rmtree(self.path(directory))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _write_error(self.path(directory), error) from error

    def remove_temporaries(self, directory: str) -> int:
        """Remove what an interrupted writer left behind; call it only while holding the lock."""
        removed = 0
        with contextlib.suppress(FileNotFoundError), os.scandir(self.path(directory)) as entries:
            for entry in entries:
                if _TEMPORARY.fullmatch(entry.name):
                    os.unlink(entry.path)
                    removed += 1
        return removed

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold the folder for this process; the system releases it however the process ends."""
        try:
            file = open(self.path(name), "a+")  # noqa: SIM115 - closed below, after the lock is taken
        except OSError as error:
            raise _write_error(self.path(name), error) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                owner = file.read(64).strip() or "unknown"
                raise UsageError(
                    f"another run is writing to {self.root}",
                    f"process      {owner}",
                    "Wait for it to end, stop it, or use another --out.",
                ) from None
            file.truncate(0)
            file.write(f"{os.getpid()}\n")
            file.flush()
            yield

    def locked_by(self, name: str) -> int | None:
        """The process that holds the lock now, if any."""
        try:
            with open(self.path(name)) as file:
                try:
                    fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    text = file.read(64).strip()
                    return int(text) if text.isdigit() else 0
        except OSError:
            return None
        return None

    def free_bytes(self) -> int:
        """The space left on the folder's file system (of its nearest existing parent)."""
        path = self.root
        while not os.path.exists(path):
            path = os.path.dirname(path)
        status = os.statvfs(path)
        return status.f_bavail * status.f_frsize


class _Eager(io.FileIO):
    """A file whose bytes are on their way to the disk while more are written, so that syncing it takes no long wait."""

    _waiting = 0

    def write(self, data: Any) -> int:
        """Write, and after some megabytes tell the kernel that they can go; it starts to write them out."""
        written = super().write(data)
        self._waiting += written
        if self._waiting >= EAGER_BYTES and hasattr(os, "posix_fadvise"):
            start = self.tell() - self._waiting
            os.posix_fadvise(self.fileno(), start, self._waiting, os.POSIX_FADV_DONTNEED)
            self._waiting = 0
        return written


def _exactly(file: io.FileIO, count: int) -> bytes:
    """Some bytes from where a file stands, in as many reads as that takes; fewer if it ends."""
    data = file.read(count) or b""
    while len(data) < count and (more := file.read(count - len(data))):
        data += more
    return data


def _unsealed(name: str) -> str:
    return os.path.join(os.path.dirname(name), f".{os.path.basename(name)}.unsealed")


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_error(path: str, error: OSError) -> StoreError:
    reason = os.strerror(error.errno) if error.errno else str(error)
    advice = {
        errno.ENOSPC: "Free some space and run the same command again: what is committed stays.",
        errno.EDQUOT: "Free some of the quota and run the same command again: what is committed stays.",
        errno.EROFS: "Choose an --out that can be written.",
        errno.EACCES: "Choose an --out that can be written.",
    }
    details = [f"reason       {reason}"]
    if error.errno in advice:
        details.append(advice[error.errno])
    return StoreError(f"cannot write {path}", *details)
