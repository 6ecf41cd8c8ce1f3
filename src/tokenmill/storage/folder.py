"""Protocols of a writable directory, on a disk or in an object store, and of a lease in it.

A published file is complete and immutable. Names are relative to the folder's root and use `/`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

import pyarrow as pa

from tokenmill.errors import StoreError

ReadRange = Callable[[int, int], bytes]


class Lease(Protocol):
    """The right to do one thing, which one of several machines holds at a time.

    On a disk it is a file lock, which ends with its holder. In an object store it is an object that its holder rewrites
    at intervals; another process takes it over when the object has not changed for some time, so clocks need not agree.
    Two holders are possible for a moment: the work that a lease guards must tolerate being done twice.
    """

    def take(self) -> bool:
        """Try to take the lease. It may be called again after it returned False."""

    def release(self) -> None:
        """Give up the lease."""


class Folder(Protocol):
    """Published files below a root."""

    root: str

    @property
    def is_remote(self) -> bool:
        """Whether reads wait for a network, so that callers should prefetch."""

    def path(self, name: str) -> str:
        """The full path or URL of a name. Raises CorruptStore if the name leads outside the folder."""

    def create(self, name: str = ".") -> bool:
        """Make the folder, or a directory in it. Returns True if it did not exist; always False in an object store."""

    def exists(self, name: str) -> bool:
        """Whether a file of that name is published."""

    def names(self, directory: str) -> list[str]:
        """The published files directly inside a directory, unordered. Empty if the directory does not exist."""

    def directories(self, directory: str) -> list[str]:
        """The directories directly inside a directory, unordered. Empty if the directory does not exist."""

    def numbered_names(self, directory: str, count: int) -> Iterator[list[str]]:
        """The same in batches, for a directory of up to `count` files whose names begin with eight digits."""

    def numbered_sizes(self, directory: str, count: int) -> Iterator[list[tuple[str, int]]]:
        """The same, each name with its file's size in bytes."""

    def size(self, name: str) -> int:
        """The size of a file in bytes."""

    def read(self, name: str, limit_bytes: int | None = None) -> bytes:
        """The content of a file, or its first `limit_bytes` bytes."""

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of a file, read as they are consumed."""

    def chunks(self, name: str, start: int, count: int) -> Iterator[bytes]:
        """A byte range of a file, in chunks of at most a mebibyte."""

    def read_at(self, name: str, start: int, count: int) -> bytes:
        """Exactly `count` bytes from `start`. Raises CorruptStore if the file is shorter."""

    def open_version(self, name: str, limit_bytes: int) -> tuple[bytes, int, ReadRange]:
        """The first bytes of a file, its size, and a function that reads ranges of this version, by start and count.

        The function raises CorruptStore if the file is shorter, or in an object store if it was replaced.
        """

    def map(self, name: str) -> pa.NativeFile:
        """A published file for reading, memory-mapped on a disk."""

    def buffer(self, name: str) -> pa.Buffer:
        """All bytes of a published file, memory-mapped on a disk."""

    def publish(self, name: str, *, durable: bool = True, if_absent: bool = False) -> AbstractContextManager[BinaryIO]:
        """Write a file that appears under its name, complete, when the block ends without an error.

        Args:
            name: Where the file appears. An existing file is replaced.
            durable: Make the name survive a power cut at once. Otherwise the next `sync_directory` does.
            if_absent: Do not replace a file: raise AlreadyPublishedError if there is one.
        """

    def publish_if_absent(self, name: str, data: pa.Buffer) -> bool:
        """Publish a file unless one exists, whatever it contains. Returns True if this call published it."""

    def check_conditional_create(self) -> None:
        """Raise StorageError if two processes could both publish the first file of a name. A disk always passes."""

    def publish_new(self, name: str, data: bytes) -> bool:
        """Publish a file unless one exists. Returns False if one exists with another content."""

    def write_region(self, name: str, size: int, start: int) -> AbstractContextManager[BinaryIO]:
        """Write a byte range of a file that several processes write. `finalize` publishes the file.

        Args:
            name: The file that `finalize` publishes.
            size: The size of the whole file in bytes.
            start: The offset of the first byte written.
        """

    def region_exists(self, name: str, size: int, start: int, count: int) -> bool:
        """Whether `count` bytes from `start` were written of a file of `size` bytes, finalized or not."""

    def region_file(self, name: str) -> str:
        """The name under which a file of regions can be read now: its own, or a temporary one until `finalize`."""

    def discard_regions(self, name: str) -> None:
        """Remove the regions of a file that were written before `finalize`, and were not joined."""

    def finalize(self, name: str, size: int, on_progress: Callable[[int], None] = lambda _: None) -> None:
        """Publish a file whose regions are all written. Does nothing if it is already published.

        An object store copies the regions into one object, and calls `on_progress` with the bytes of each step.
        """

    def sync_directory(self, directory: str) -> None:
        """Make the names in a directory survive a power cut."""

    def append(self, name: str, data: bytes) -> None:
        """Add lines to a journal that several processes write."""

    def discard(self, name: str) -> None:
        """Remove a file if it exists."""

    def remove(self, directory: str) -> None:
        """Remove a directory with its files if it exists."""

    def remove_if_empty(self, lock: str) -> None:
        """Remove the folder if it contains nothing but its lock file, which the caller holds."""

    def remove_temporaries(self, directory: str) -> int:
        """Remove what interrupted writers left; returns the number of files. The caller must hold the lock."""

    def lock(self, name: str, on_wait: Callable[[str], None] | None = None) -> AbstractContextManager[None]:
        """Hold the folder exclusively, where it supports locks; an object store lets every process write.

        If another process holds it, `on_wait` is called with that process and the call blocks. Without `on_wait`
        UsageError is raised.
        """

    def shared_lock(self, name: str) -> AbstractContextManager[None]:
        """Hold the folder together with other processes that call `shared_lock`, and exclude those that call `lock`."""

    def lease(self, name: str) -> Lease:
        """A lease of that name, not yet taken."""

    def lock_holder(self, name: str) -> str | None:
        """The process id of the exclusive holder, as text. None if no process holds it, or in an object store."""

    def free_bytes(self) -> int | None:
        """The space left on the folder's file system. None for an object store."""


def read_existing(folder: Folder, name: str, limit_bytes: int | None = None) -> bytes | None:
    """The content of a file, or its first bytes; None if there is no such file.

    Another process may remove it after it was found. The answer of an object store for a missing object may be broken
    off; that for its existence has no body.
    """
    if not folder.exists(name):
        return None
    try:
        return folder.read(name, limit_bytes)
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise
