"""A Folder on a disk. A file is written under a temporary name, synced and renamed.

The directory may come from another user, for example in an archive. So DiskFolder does not follow a symbolic link out
of it, reads only regular files, and writes in place only to a file without another hard link.
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
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.storage.addresses import absolute
from tokenmill.storage.folder import Folder, Locks, Ranges, ReadRange, Regions
from tokenmill.storage.local.files import (
    AlreadyPublishedError,
    DiskLocks,
    EagerFile,
    check_size,
    has_link,
    is_inside,
    open_regular,
    rename_if_absent,
    require_no_file,
    require_regular_file,
    require_unlinked,
    sync_directory,
    truncated_error,
    unreadable,
    writing,
)

TEMPORARY_SUFFIX = ".tmp"
CHUNK_BYTES = 1 << 20
# How often a directory is removed again because another process wrote to it meanwhile.
REMOVAL_TRIES = 20

# The temporary names that `publish` makes. Only these are removed: a user's file may end in .tmp, too.
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")


class DiskFolder:
    """A directory of published files."""

    is_remote = False

    def __init__(self, root: str) -> None:
        self.root = absolute(root)
        self.ranges: Ranges = DiskRanges(self)
        self.regions: Regions = DiskRegions(self)
        self.locks: Locks = DiskLocks(self)

    def path(self, name: str) -> str:
        """The full path of a name. Raises CorruptStore if it leads outside the folder, also by a symbolic link."""
        path = os.path.normpath(os.path.join(self.root, name))
        if "\0" in name or os.path.isabs(name) or not is_inside(self.root, path):
            raise CorruptStore(f"the name {name!r} points outside {self.root}")
        if has_link(self.root, path) and not is_inside(os.path.realpath(self.root), os.path.realpath(path)):
            raise CorruptStore(
                f"a symbolic link leads outside {self.root}",
                f"file         {path}",
                f"leads to     {os.path.realpath(path)}",
                "Nothing is read or written there. Replace the link with its target.",
            )
        return path

    def create(self, name: str = ".") -> bool:
        """Make the folder, or a directory in it, with its parents. Returns True if it did not exist."""
        path = self.path(name)
        created = []
        require_no_file(path)
        while not os.path.isdir(path):
            created.append(path)
            path = os.path.dirname(path)
        with writing(self.path(name)):
            os.makedirs(self.path(name), exist_ok=True)
            for directory in created:  # files survive a power cut only if the name of their directory does
                sync_directory(os.path.dirname(directory))
        return bool(created)

    def exists(self, name: str) -> bool:
        """Whether a file of that name is published."""
        return os.path.exists(self.path(name))

    def names(self, directory: str) -> list[str]:
        """The published files directly inside a directory, unordered. Empty if the directory does not exist."""
        try:
            with os.scandir(self.path(directory)) as entries:
                return [entry.name for entry in entries if not entry.name.endswith(TEMPORARY_SUFFIX)]
        except (FileNotFoundError, NotADirectoryError):  # a file may be where a directory is looked for
            return []
        except OSError as error:
            raise unreadable(self.path(directory), error) from error

    def directories(self, directory: str) -> list[str]:
        """The directories directly inside a directory, unordered. Empty if the directory does not exist."""
        return [name for name in self.names(directory) if os.path.isdir(self.path(f"{directory}/{name}"))]

    def numbered_sizes(self, directory: str, count: int) -> Iterator[list[tuple[str, int]]]:  # noqa: ARG002 - protocol
        """The files of a directory in one batch, with their sizes. Links are skipped: no published file is one."""
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
        """The content of a file, or its first `limit_bytes` bytes."""
        path = self.path(name)
        with open_regular(path) as file:
            count = check_size(path, require_regular_file(path).st_size) if limit_bytes is None else limit_bytes
            return bytes(file.read(count))

    def buffer(self, name: str) -> pa.Buffer:
        """All bytes of a published file; the system loads them when they are accessed."""
        path = self.path(name)
        if not require_regular_file(path).st_size:
            return pa.py_buffer(b"")
        try:
            return pa.memory_map(path, "rb").read_buffer()
        except OSError as error:
            raise StoreError(f"cannot open {path}", str(error)) from error

    @contextlib.contextmanager
    def publish(self, name: str, *, durable: bool = True, if_absent: bool = False) -> Iterator[BinaryIO]:
        """Write a file that appears under its name, complete, when the block ends without an error; see Folder."""
        path = self.path(name)
        temporary = f"{os.path.dirname(path)}/.{os.path.basename(path)}.{secrets.token_hex(6)}{TEMPORARY_SUFFIX}"
        try:
            with writing(path):
                with io.BufferedWriter(EagerFile(temporary, "xb")) as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                (rename_if_absent if if_absent else os.replace)(temporary, path)
                if durable:
                    sync_directory(os.path.dirname(path))
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)

    def publish_if_absent(self, name: str, data: pa.Buffer) -> bool:
        """Publish a file unless one exists. Of several processes that try, one gets True."""
        try:
            with self.publish(name, if_absent=True) as file:
                file.write(data)
        except AlreadyPublishedError:
            return False
        return True

    def sync_directory(self, directory: str) -> None:
        """Make the names in a directory survive a power cut."""
        with writing(self.path(directory)):
            sync_directory(self.path(directory))

    def append(self, name: str, data: bytes) -> None:
        """Add lines to a file in one write, so that lines of several processes do not mix."""
        with writing(self.path(name)):
            descriptor = os.open(require_unlinked(self.path(name)), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                os.write(descriptor, data)
            finally:
                os.close(descriptor)

    def discard(self, name: str) -> None:
        """Remove a file if it exists."""
        with writing(self.path(name)), contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(name))

    def remove(self, directory: str) -> None:
        """Remove a directory with its files if it exists. Another process may write to it, or remove it, meanwhile."""
        path = self.path(directory)
        with writing(path):
            for tries_left in reversed(range(REMOVAL_TRIES)):
                try:
                    shutil.rmtree(path)
                except OSError as error:
                    is_last = not tries_left or error.errno not in (errno.ENOENT, errno.ENOTEMPTY)
                    if os.path.lexists(path) and is_last:
                        raise
                if not os.path.lexists(path):
                    return

    def remove_temporaries(self, directory: str) -> None:
        """Remove what interrupted writers left. The caller must hold the lock."""
        with (
            writing(self.path(directory)),
            contextlib.suppress(FileNotFoundError),
            os.scandir(self.path(directory)) as entries,
        ):
            for entry in entries:
                if _TEMPORARY.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)


@dataclass(frozen=True, slots=True)
class DiskRanges:
    """Byte ranges of the files of a folder on a disk."""

    _folder: Folder

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of a file, read as they are consumed."""
        with open_regular(self._folder.path(name)) as file:
            yield from file

    def chunks(self, name: str, start: int, count: int) -> Iterator[bytes]:
        """A byte range of a file in chunks."""
        self._require_range(name, start, count)
        with open_regular(self._folder.path(name)) as file:
            file.seek(start)
            for offset in range(0, count, CHUNK_BYTES):
                yield file.read(min(CHUNK_BYTES, count - offset))

    def read_at(self, name: str, start: int, count: int) -> bytes:
        """Exactly `count` bytes from `start`. Raises CorruptStore if the file is shorter."""
        self._require_range(name, start, count)
        with open_regular(self._folder.path(name)) as file:
            file.seek(start)
            data: bytes = file.read(count)
        if len(data) < count:
            raise truncated_error(self._folder.path(name), start + count)
        return data

    def open_version(self, name: str, limit_bytes: int) -> tuple[bytes, int, ReadRange]:
        """The first bytes of a file, its size, and a function that reads ranges of the same version; see Ranges."""
        data = self._folder.buffer(name)

        def read_range(start: int, count: int) -> bytes:
            if min(start, count) < 0 or start + count > data.size:
                raise truncated_error(self._folder.path(name), start + count)
            return bytes(data.slice(start, count))

        return bytes(data.slice(0, min(limit_bytes, data.size))), data.size, read_range

    def _require_range(self, name: str, start: int, count: int) -> None:
        """Refuse a range that the file does not have, before memory is allocated for it."""
        if min(start, count) < 0 or start + count > self._folder.size(name):
            raise truncated_error(self._folder.path(name), start + count)


@dataclass(frozen=True, slots=True)
class DiskRegions:
    """Files of a folder on a disk, which are written in place."""

    _folder: Folder

    @contextlib.contextmanager
    def write(self, name: str, size: int, start: int) -> Iterator[BinaryIO]:
        """Write a region in place.

        A late writer may find the file finalized. It writes the bytes that are already there into that file.
        """
        final, unfinished = self._paths(name)
        with writing(final):
            descriptor = _open(require_unlinked(final), require_unlinked(unfinished))
            with io.BufferedWriter(EagerFile(descriptor, "wb")) as file:
                if os.path.getsize(descriptor) != size:
                    os.ftruncate(descriptor, size)
                file.seek(start)
                yield file
                file.flush()
                os.fsync(descriptor)

    def exists(self, name: str, size: int, start: int, count: int) -> bool:  # noqa: ARG002 - protocol
        """Whether the file, finalized or not, has its size. A region is not recorded separately."""
        for path in self._paths(name):
            with contextlib.suppress(OSError):
                return os.path.getsize(path) == size
        return False

    def file(self, name: str) -> str:
        """The name of the file as long as it is not finalized."""
        return name if os.path.exists(self._folder.path(name)) else _unfinished(name)

    def discard(self, name: str) -> None:
        """Remove the file with the regions, under its temporary name."""
        self._folder.discard(_unfinished(name))

    def finalize(self, name: str, size: int, on_progress: Callable[[int], None] = lambda _: None) -> None:  # noqa: ARG002
        """Rename a file whose regions are all written. Does nothing if it is already published."""
        final, unfinished = self._paths(name)
        if not self.exists(name, size, 0, size):
            raise StoreError(f"{final} disappeared while it was written", "Run the same command again.")
        with writing(final):
            if not os.path.exists(final):
                os.rename(unfinished, final)
            sync_directory(os.path.dirname(final))

    def _paths(self, name: str) -> tuple[str, str]:
        return self._folder.path(name), self._folder.path(_unfinished(name))


def _unfinished(name: str) -> str:
    """The name of the file until it is finalized."""
    return os.path.join(os.path.dirname(name), f".{os.path.basename(name)}.unsealed")


def _open(final: str, unfinished: str) -> int:
    if not os.path.exists(final):
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT, 0o644)
        if not os.path.exists(final) or os.path.samestat(os.fstat(descriptor), os.stat(final)):
            return descriptor
        os.close(descriptor)  # it was finalized in between, and this is a new, empty file
        os.unlink(unfinished)
    return os.open(final, os.O_WRONLY)
