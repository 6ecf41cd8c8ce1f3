"""A directory of ours. A file appears in it whole or not at all: written under a temporary name, synced, renamed."""

from __future__ import annotations

import contextlib
import fcntl
import io
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from typing import BinaryIO

import pyarrow as pa

from tokenmill import machine
from tokenmill.errors import CorruptStore, StoreError, UsageError
from tokenmill.storage.inputs import absolute
from tokenmill.storage.writing import EagerFile, sync_directory, write_error

TEMPORARY_SUFFIX = ".tmp"

_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")
"""What `publish` calls a file before it is whole. Other people's files may end alike."""


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
            raise write_error(self.path(name), error) from error

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
            with io.BufferedWriter(EagerFile(temporary, "xb")) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            if settled:
                sync_directory(os.path.dirname(path))
        except OSError as error:
            raise write_error(path, error) from error
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
            with io.BufferedWriter(EagerFile(descriptor, "wb")) as file:
                if os.path.getsize(descriptor) != size:
                    os.ftruncate(descriptor, size)
                file.seek(start)
                yield file
                file.flush()
                os.fsync(descriptor)
        except OSError as error:
            raise write_error(path, error) from error

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
            sync_directory(os.path.dirname(self.path(name)))
        except OSError as error:
            raise write_error(self.path(name), error) from error

    def settle(self, directory: str) -> None:
        """Make the names of the files in a directory survive a loss of power."""
        try:
            sync_directory(self.path(directory))
        except OSError as error:
            raise write_error(self.path(directory), error) from error

    def append(self, name: str, data: bytes) -> None:
        """Add bytes to the end of a file in one write, so that lines of several writers do not mix."""
        try:
            descriptor = os.open(self.path(name), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise write_error(self.path(name), error) from error

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
            raise write_error(self.path(directory), error) from error

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
    def lock(self, name: str, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
        """Hold the folder for this process; the system releases it however the process ends.

        If another one holds it, that is an error; or, if `waiting` is given, it is told who, and this one waits.
        """
        try:
            file = open(self.path(name), "a+")  # noqa: SIM115 - closed below, after the lock is taken
        except OSError as error:
            raise write_error(self.path(name), error) from error
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.seek(0)
                owner = file.read(64).strip() or "unknown"
                if waiting is None:
                    raise UsageError(
                        f"another run is writing to {self.root}",
                        f"process      {owner}",
                        "Wait for it to end, stop it, or use another --out.",
                    ) from None
                waiting(owner)
                fcntl.flock(file, fcntl.LOCK_EX)
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
        return machine.free_disk_bytes(self.root)


def _exactly(file: io.FileIO, count: int) -> bytes:
    """Some bytes from where a file stands, in as many reads as that takes; fewer if it ends."""
    data = file.read(count) or b""
    while len(data) < count and (more := file.read(count - len(data))):
        data += more
    return data


def _unsealed(name: str) -> str:
    return os.path.join(os.path.dirname(name), f".{os.path.basename(name)}.unsealed")
