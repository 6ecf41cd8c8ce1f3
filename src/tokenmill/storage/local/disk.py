"""A Folder on a disk. A file is written under a temporary name, synced and renamed.

The directory may come from another user, for example in an archive. So DiskFolder does not follow a symbolic link out
of it, reads only regular files, and writes in place only to a file without another hard link.
"""

from __future__ import annotations

import contextlib
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
from tokenmill.storage.folder import Lease, ReadRange
from tokenmill.storage.local import regions
from tokenmill.storage.local.guards import (
    check_size,
    is_inside,
    require_no_file,
    require_regular_file,
    require_unlinked,
    truncated_error,
    unreadable,
)
from tokenmill.storage.local.lease import DiskLease
from tokenmill.storage.local.locks import EXCLUSIVE, SHARED, holder, lock_file, locked, try_lock
from tokenmill.storage.local.writing import AlreadyPublishedError, EagerFile, rename_if_absent, sync_directory, writing
from tokenmill.system import machine

TEMPORARY_SUFFIX = ".tmp"
CLEANUP_SECONDS = 20.0  # a process that cleans up after others may hold the exclusive lock this long
CHUNK_BYTES = 1 << 20

# The temporary names that `publish` makes. Only these are removed: a user's file may end in .tmp, too.
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{12}\.tmp")


class DiskFolder:
    """A directory of published files."""

    is_remote = False

    def __init__(self, root: str) -> None:
        self.root = absolute(root)

    def path(self, name: str) -> str:
        """The full path of a name. Raises CorruptStore if it leads outside the folder, also by a symbolic link."""
        path = os.path.normpath(os.path.join(self.root, name))
        if "\0" in name or os.path.isabs(name) or not is_inside(self.root, path):
            raise CorruptStore(f"the name {name!r} points outside {self.root}")
        if self._has_link(path) and not is_inside(os.path.realpath(self.root), os.path.realpath(path)):
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
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreadable(self.path(directory), error) from error

    def directories(self, directory: str) -> list[str]:
        """The directories directly inside a directory, unordered. Empty if the directory does not exist."""
        return [name for name in self.names(directory) if os.path.isdir(self.path(f"{directory}/{name}"))]

    def numbered_names(self, directory: str, count: int) -> Iterator[list[str]]:  # noqa: ARG002 - protocol
        """The same in one batch: a disk lists a million names in a second."""
        yield self.names(directory)

    def numbered_sizes(self, directory: str, count: int) -> Iterator[list[tuple[str, int]]]:  # noqa: ARG002 - protocol
        """The same, each name with its file's size. Links are skipped: no published file is one."""
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
        with self._open(name) as file:
            count = check_size(self.path(name), self.size(name)) if limit_bytes is None else limit_bytes
            return bytes(file.read(count))

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of a file, read as they are consumed."""
        with self._open(name) as file:
            yield from file

    def chunks(self, name: str, start: int, count: int) -> Iterator[bytes]:
        """A byte range of a file in chunks."""
        self._require_range(name, start, count)
        with self._open(name) as file:
            file.seek(start)
            for offset in range(0, count, CHUNK_BYTES):
                yield file.read(min(CHUNK_BYTES, count - offset))

    def read_at(self, name: str, start: int, count: int) -> bytes:
        """Exactly `count` bytes from `start`. Raises CorruptStore if the file is shorter."""
        self._require_range(name, start, count)
        with self._open(name, buffering=0) as file:
            file.seek(start)
            data = file.read(count) or b""
            while len(data) < count and (more := file.read(count - len(data))):  # a raw read may return fewer bytes
                data += more
        if len(data) < count:
            raise truncated_error(self.path(name), start + count)
        return data

    def open_version(self, name: str, limit_bytes: int) -> tuple[bytes, int, ReadRange]:
        """The first bytes of a file, its size, and a function that reads ranges of the same version; see Folder."""
        data = self.buffer(name)

        def read_range(start: int, count: int) -> bytes:
            if min(start, count) < 0 or start + count > data.size:
                raise truncated_error(self.path(name), start + count)
            return bytes(data.slice(start, count))

        return bytes(data.slice(0, min(limit_bytes, data.size))), data.size, read_range

    def map(self, name: str) -> pa.NativeFile:
        """A published file as a memory map."""
        require_regular_file(self.path(name))
        try:
            return pa.memory_map(self.path(name), "rb")
        except OSError as error:
            raise StoreError(f"cannot open {self.path(name)}", str(error)) from error

    def buffer(self, name: str) -> pa.Buffer:
        """All bytes of a published file; the system loads them when they are accessed."""
        return self.map(name).read_buffer() if self.size(name) else pa.py_buffer(b"")

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

    def check_conditional_create(self) -> None:
        """Do nothing: a file system creates a name once."""

    def publish_new(self, name: str, data: bytes) -> bool:
        """Publish a file unless one exists. Returns False if one exists with another content."""
        return self.publish_if_absent(name, pa.py_buffer(data)) or self.read(name) == data

    def write_region(self, name: str, size: int, start: int) -> contextlib.AbstractContextManager[BinaryIO]:
        """Write a byte range of a file in place, under its temporary name until `finalize`."""
        return regions.write_region(*self._region_paths(name), size, start)

    def region_exists(self, name: str, size: int, start: int, count: int) -> bool:  # noqa: ARG002 - protocol
        """Whether the file, finalized or not, has its size. A region is not recorded separately."""
        return regions.written_bytes(*self._region_paths(name)) == size

    def region_file(self, name: str) -> str:
        """The name of the file as long as it is not finalized."""
        return name if os.path.exists(self.path(name)) else regions.unfinished_name(name)

    def discard_regions(self, name: str) -> None:
        """Remove the file with the regions, under its temporary name."""
        self.discard(regions.unfinished_name(name))

    def finalize(self, name: str, size: int, on_progress: Callable[[int], None] = lambda _: None) -> None:  # noqa: ARG002
        """Rename a file whose regions are all written. Does nothing if it is already published."""
        regions.finalize(*self._region_paths(name), size)

    def _region_paths(self, name: str) -> tuple[str, str]:
        return self.path(name), self.path(regions.unfinished_name(name))

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
        """Remove a directory with its files if it exists."""
        with writing(self.path(directory)), contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.path(directory))

    def remove_if_empty(self, lock: str) -> None:
        """Remove the folder if it contains nothing but its lock file, which the caller holds."""
        with contextlib.suppress(OSError):
            if os.listdir(self.root) == [lock]:
                os.unlink(self.path(lock))
                os.rmdir(self.root)  # fails if another process has created a file meanwhile

    def remove_temporaries(self, directory: str) -> int:
        """Remove what interrupted writers left; returns the number of files. The caller must hold the lock."""
        removed = 0
        with (
            writing(self.path(directory)),
            contextlib.suppress(FileNotFoundError),
            os.scandir(self.path(directory)) as entries,
        ):
            for entry in entries:
                if _TEMPORARY.fullmatch(entry.name) and not entry.is_dir(follow_symlinks=False):
                    os.unlink(entry.path)
                    removed += 1
        return removed

    @contextlib.contextmanager
    def lock(self, name: str, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
        """Hold the folder exclusively; see Folder. The system releases the lock however the process ends."""
        with locked(self.root, self.path(name), EXCLUSIVE, on_wait) as file:
            with writing(self.path(name)):
                file.truncate(0)
                os.write(file.fileno(), b"%d\n" % os.getpid())
            yield

    @contextlib.contextmanager
    def shared_lock(self, name: str) -> Iterator[None]:
        """Hold the folder together with others. Raises UsageError if a process holds it exclusively for long.

        The last of several processes takes the exclusive lock for a moment to clean up.
        """
        with locked(self.root, self.path(name), SHARED, timeout_seconds=CLEANUP_SECONDS) as file:
            file.truncate(0)  # remove the process id of an earlier exclusive holder
            yield

    def lease(self, name: str) -> Lease:
        """A lease of that name, not yet taken."""
        return DiskLease(lock_file(self.path(f".{name}.lock")))

    def lock_holder(self, name: str) -> str | None:
        """The process id of the exclusive holder, as text; None if no process holds it."""
        if not self.exists(name):
            return None
        with self._open(name) as file:
            return None if try_lock(file, SHARED) else str(holder(file))

    def free_bytes(self) -> int | None:
        """The space left on the file system of the folder, or of its nearest existing parent."""
        return machine.free_disk_bytes(self.root)

    def _has_link(self, path: str) -> bool:
        """Whether a path contains a symbolic link below the root. The root itself may be one."""
        while path != self.root:
            if os.path.islink(path):
                return True
            path = os.path.dirname(path)
        return False

    @contextlib.contextmanager
    def _open(self, name: str, buffering: int = -1) -> Iterator[Any]:
        """Open a regular file for reading. Errors name its path."""
        path = self.path(name)
        require_regular_file(path)
        try:
            with open(path, "rb", buffering) as file:
                yield file
        except OSError as error:
            raise unreadable(path, error) from error

    def _require_range(self, name: str, start: int, count: int) -> None:
        """Refuse a range that the file does not have, before memory is allocated for it."""
        if min(start, count) < 0 or start + count > self.size(name):
            raise truncated_error(self.path(name), start + count)
