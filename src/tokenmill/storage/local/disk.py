"""A directory of ours. A file appears in it whole or not at all: written under a temporary name, synced, renamed.

It may come from somebody else, as an archive does. So nothing is read or written through a symbolic link that leaves
it, only regular files are read, and what is written in place is a file of its own.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import pyarrow as pa

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.storage.addresses import absolute
from tokenmill.storage.lease import Lease
from tokenmill.storage.local.guards import (
    check_size,
    is_inside,
    require_regular_file,
    require_unlinked,
    truncated_error,
    unreadable,
)
from tokenmill.storage.local.lease import DiskLease
from tokenmill.storage.local.locks import ALONE, TOGETHER, holder, lock_file, locked, try_lock
from tokenmill.storage.local.writing import AlreadyPublishedError, EagerFile, sync_directory, write_error
from tokenmill.system import machine

TEMPORARY_SUFFIX = ".tmp"
TIDY_SECONDS = 20.0
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")
"""What `publish` calls a file before it is whole. Other people's files may end alike."""


class DiskFolder:
    """A directory of published files, addressed by names relative to it."""

    is_remote = False

    def __init__(self, root: str) -> None:
        self.root = absolute(root)

    def path(self, name: str) -> str:
        """The full path of a name, which must stay inside the folder, also where it leads over symbolic links."""
        path = os.path.normpath(os.path.join(self.root, name))
        if "\0" in name or os.path.isabs(name) or not is_inside(self.root, path):
            raise CorruptStore(f"the name {name!r} points outside {self.root}")
        if self._has_link(path) and not is_inside(os.path.realpath(self.root), os.path.realpath(path)):
            raise CorruptStore(
                f"a symbolic link leads outside {self.root}",
                f"file         {path}",
                f"leads to     {os.path.realpath(path)}",
                "Nothing is read or written there. Replace the link by what it leads to.",
            )
        return path

    def create(self, name: str = ".") -> bool:
        """Make the folder, or one inside it, with its parents; whether it was not there."""
        path = self.path(name)
        made = []
        _refuse_file(path)
        while not os.path.isdir(path):
            made.append(path)
            path = os.path.dirname(path)
        try:
            os.makedirs(self.path(name), exist_ok=True)
            for each in made:  # what is in a directory survives a loss of power only if its own name does
                sync_directory(os.path.dirname(each))
        except OSError as error:
            raise write_error(self.path(name), error) from error
        return bool(made)

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
        except OSError as error:
            raise unreadable(self.path(directory), error) from error

    def numbered_names(self, directory: str, count: int) -> Iterator[list[str]]:  # noqa: ARG002 - the face of a folder
        """The same, in one lot: a disk lists a million names in a second."""
        yield self.names(directory)

    def numbered_sizes(self, directory: str, count: int) -> Iterator[list[tuple[str, int]]]:  # noqa: ARG002 - see above
        """The same with the size of each file; links count as nothing, because no file of ours is one."""
        try:
            with os.scandir(self.path(directory)) as entries:
                yield [(entry.name, entry.stat().st_size) for entry in entries if entry.is_file(follow_symlinks=False)]
        except FileNotFoundError:
            return
        except OSError as error:
            raise unreadable(self.path(directory), error) from error

    def size(self, name: str) -> int:
        """The size of a file in bytes."""
        return require_regular_file(self.path(name)).st_size

    def read(self, name: str, limit_bytes: int | None = None) -> bytes:
        """The content of a file, or its first bytes."""
        with self._open(name) as file:
            return bytes(
                file.read(check_size(self.path(name), self.size(name)) if limit_bytes is None else limit_bytes)
            )

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of a file, one after the other."""
        with self._open(name) as file:
            yield from file

    def chunks(self, name: str, start: int, count: int) -> Iterator[bytes]:
        """A stretch of a file, a mebibyte at a time."""
        self._require(name, start, count)
        with self._open(name) as file:
            file.seek(start)
            for place in range(0, count, 1 << 20):
                yield file.read(min(1 << 20, count - place))

    def read_at(self, name: str, start: int, count: int) -> bytes:
        """Exactly these bytes of a file."""
        self._require(name, start, count)
        with self._open(name, buffering=0) as file:
            file.seek(start)
            data = _exactly(file, count)
        if len(data) < count:
            raise truncated_error(self.path(name), start + count)
        return data

    def map(self, name: str) -> pa.NativeFile:
        """A published, and therefore immutable, file as a memory map."""
        require_regular_file(self.path(name))
        try:
            return pa.memory_map(self.path(name), "rb")
        except OSError as error:
            raise StoreError(f"cannot open {self.path(name)}", str(error)) from error

    def buffer(self, name: str) -> pa.Buffer:
        """All bytes of such a file, none of them in memory before they are looked at."""
        return self.map(name).read_buffer() if self.size(name) else pa.py_buffer(b"")

    @contextlib.contextmanager
    def publish(self, name: str, *, durable: bool = True, first: bool = False) -> Iterator[BinaryIO]:
        """Write a file that appears under its name when the block ends, complete, or never.

        If `settled`, the name survives a loss of power from then on; if not, from the next `settle` on. If it is to be
        the `first` of that name, and there is one, Overtaken is raised.
        """
        path = self.path(name)
        temporary = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}"
        try:
            with io.BufferedWriter(EagerFile(temporary, "xb")) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            (_name_first if first else os.replace)(temporary, path)
            if durable:
                sync_directory(os.path.dirname(path))
        except OSError as error:
            raise write_error(path, error) from error
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    @contextlib.contextmanager
    def write_region(self, name: str, size: int, start: int) -> Iterator[BinaryIO]:
        """Write a stretch of a file that several writers fill; it appears under its name when it is sealed.

        In one that is sealed already, the stretch is written where it is: whoever comes late writes what is there.
        """
        path = self.path(name)
        try:
            descriptor = self._fillable(name)
            with io.BufferedWriter(EagerFile(descriptor, "wb")) as file:
                if os.path.getsize(descriptor) != size:
                    os.ftruncate(descriptor, size)
                file.seek(start)
                yield file
                file.flush()
                os.fsync(descriptor)
        except OSError as error:
            raise write_error(path, error) from error

    def _fillable(self, name: str) -> int:
        """The descriptor of a file that is being filled, or of the sealed one."""
        sealed, unsealed = require_unlinked(self.path(name)), require_unlinked(self.path(_unsealed(name)))
        if not os.path.exists(sealed):
            descriptor = os.open(unsealed, os.O_WRONLY | os.O_CREAT, 0o644)
            if not os.path.exists(sealed) or os.path.samestat(os.fstat(descriptor), os.stat(sealed)):
                return descriptor
            os.close(descriptor)  # it was sealed in between, and what was opened is a new, empty file
            os.unlink(unsealed)
        return os.open(sealed, os.O_WRONLY)

    def publish_if_absent(self, name: str, data: pa.Buffer) -> bool:
        """Publish a file unless there is one; whether it was. Of several that try, one does."""
        try:
            with self.publish(name, first=True) as file:
                file.write(data)
        except AlreadyPublishedError:
            return False
        return True

    def check_conditional_create(self) -> None:
        """Nothing: file systems create a name once."""

    def publish_new(self, name: str, data: bytes) -> bool:
        """The same; False only if there is one with another content."""
        return self.publish_if_absent(name, pa.py_buffer(data)) or self.read(name) == data

    def region_exists(self, name: str, size: int, start: int, count: int) -> bool:  # noqa: ARG002 - the face of a folder
        """Whether the file has the size it should have, be it sealed or not: its stretches are in it."""
        return self._filled_bytes(name) == size

    def _filled_bytes(self, name: str) -> int | None:
        for path in (self.path(name), self.path(_unsealed(name))):
            with contextlib.suppress(OSError):
                return os.path.getsize(path)
        return None

    def finalize(self, name: str, size: int, told: Callable[[int], None] = lambda _: None) -> None:  # noqa: ARG002 - quick
        """Publish a file whose stretches have all been filled; nothing happens if that was done before."""
        if self._filled_bytes(name) != size:
            raise StoreError(f"{self.path(name)} has gone while it was written", "Run the same command again.")
        try:
            if not os.path.exists(self.path(name)):
                os.rename(self.path(_unsealed(name)), self.path(name))
            sync_directory(os.path.dirname(self.path(name)))
        except OSError as error:
            raise write_error(self.path(name), error) from error

    def sync_directory(self, directory: str) -> None:
        """Make the names of the files in a directory survive a loss of power."""
        try:
            sync_directory(self.path(directory))
        except OSError as error:
            raise write_error(self.path(directory), error) from error

    def append(self, name: str, data: bytes) -> None:
        """Add bytes to the end of a file in one write, so that lines of several writers do not mix."""
        try:
            descriptor = os.open(require_unlinked(self.path(name)), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise write_error(self.path(name), error) from error

    def discard(self, name: str) -> None:
        """Remove a file, if it is there."""
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path(name))
        except OSError as error:
            raise write_error(self.path(name), error) from error

    def remove(self, directory: str) -> None:
        """Remove a directory of files, if it is there."""
        try:
            shutil.rmtree(self.path(directory))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise write_error(self.path(directory), error) from error

    def remove_if_empty(self, lock: str) -> None:
        """Remove the folder itself if it is empty but for its lock, which the caller holds; else nothing happens."""
        with contextlib.suppress(OSError):
            if os.listdir(self.root) == [lock]:
                os.unlink(self.path(lock))
                os.rmdir(self.root)  # fails if somebody has put something there meanwhile

    def remove_temporaries(self, directory: str) -> int:
        """Remove what an interrupted writer left behind; call it only while holding the lock."""
        removed = 0
        try:
            with contextlib.suppress(FileNotFoundError), os.scandir(self.path(directory)) as entries:
                for entry in entries:
                    if _TEMPORARY.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False):
                        os.unlink(entry.path)
                        removed += 1
        except OSError as error:
            raise write_error(self.path(directory), error) from error
        return removed

    @contextlib.contextmanager
    def lock(self, name: str, waiting: Callable[[str], None] | None = None) -> Iterator[None]:
        """Hold the folder for this process; the system releases it however the process ends.

        If another one holds it, that is an error; or, if `waiting` is given, it is told who, and this one waits.
        """
        with locked(self.root, self.path(name), ALONE, waiting) as file:
            try:
                file.truncate(0)
                os.write(file.fileno(), b"%d\n" % os.getpid())
            except OSError as error:
                raise write_error(self.path(name), error) from error
            yield

    @contextlib.contextmanager
    def shared_lock(self, name: str) -> Iterator[None]:
        """Hold the folder together with others who share it; that one process holds it for itself is an error.

        For a moment it may: whoever is the last of some who share it tidies up.
        """
        with locked(self.root, self.path(name), TOGETHER, patience_seconds=TIDY_SECONDS) as file:
            file.truncate(0)  # it is no longer that of the process that wrote its number there
            yield

    def lease(self, name: str) -> Lease:
        """Ask to be the only one, of all who share the folder, to do something."""
        return DiskLease(lock_file(self.path(f".{name}.lock")))

    def lock_holder(self, name: str) -> str | None:
        """The process that holds the lock for itself now, if any."""
        if not self.exists(name):
            return None
        with self._open(name) as file:
            return None if try_lock(file, TOGETHER) else str(holder(file))

    def free_bytes(self) -> int | None:
        """The space left on the folder's file system (of its nearest existing parent)."""
        return machine.free_disk_bytes(self.root)

    def _has_link(self, path: str) -> bool:
        """Whether a path goes over a symbolic link on its way from the root, which may be one itself."""
        while path != self.root:
            if os.path.islink(path):
                return True
            path = os.path.dirname(path)
        return False

    @contextlib.contextmanager
    def _open(self, name: str, buffering: int = -1) -> Iterator[Any]:
        """A regular file for reading; what goes wrong is told with its path."""
        path = self.path(name)
        require_regular_file(path)
        try:
            with open(path, "rb", buffering) as file:
                yield file
        except OSError as error:
            raise unreadable(path, error) from error

    def _require(self, name: str, start: int, count: int) -> None:
        """Refuse bytes that a file does not have, before there is memory for them."""
        if min(start, count) < 0 or start + count > self.size(name):
            raise truncated_error(self.path(name), start + count)


def _refuse_file(path: str) -> None:
    """Refuse to make a directory where a file is, or below one."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if os.path.exists(path) and not os.path.isdir(path):
        raise StoreError(
            "a directory cannot be made where a file is",
            f"file         {path}",
            "Name another directory, or remove the file.",
        )


def _name_first(temporary: str, path: str) -> None:
    """Give a file its name if no other file has it."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise AlreadyPublishedError(path) from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EMLINK, errno.ENOSYS, errno.EXDEV):
            raise
        if os.path.exists(path):  # a file system without links, where nobody can be kept from coming in between
            raise AlreadyPublishedError(path) from None
        os.replace(temporary, path)


def _exactly(file: io.FileIO, count: int) -> bytes:
    """Some bytes from where a file stands, in as many reads as that takes; fewer if it ends."""
    data = file.read(count) or b""
    while len(data) < count and (more := file.read(count - len(data))):
        data += more
    return data


def _unsealed(name: str) -> str:
    return os.path.join(os.path.dirname(name), f".{os.path.basename(name)}.unsealed")
