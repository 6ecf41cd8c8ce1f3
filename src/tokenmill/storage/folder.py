"""Protocols of a writable directory, on a disk or in an object store, in parts by who needs what.

Functions at the end are the same for all folders, such as those that fetch in the background what is read next.

A published file is complete and immutable. Names are relative to the folder's root and use `/`.
"""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from typing import BinaryIO, ParamSpec, Protocol, TypeVar

import pyarrow as pa

from tokenmill.errors import StoreError
from tokenmill.system import machine
from tokenmill.system.storage_settings import bind

ReadRange = Callable[[int, int], bytes]

Args = ParamSpec("Args")
Item = TypeVar("Item")
Value = TypeVar("Value")

PREFETCH_FILES = 4  # files fetched whole in the background while one is used
THREADS = 32
BATCH_ITEMS = 64  # items that wait for the threads of a local folder, so that few results wait


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


class Ranges(Protocol):
    """Byte ranges of published files."""

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


class Regions(Protocol):
    """Files that several processes write, each a region of bytes."""

    def write(self, name: str, size: int, start: int) -> AbstractContextManager[BinaryIO]:
        """Write a region of a file. `finalize` publishes the file.

        Args:
            name: The file that `finalize` publishes.
            size: The size of the whole file in bytes.
            start: The offset of the first byte written.
        """

    def exists(self, name: str, size: int, start: int, count: int) -> bool:
        """Whether `count` bytes from `start` were written of a file of `size` bytes, finalized or not."""

    def file(self, name: str) -> str:
        """The name under which the file can be read now: its own, or a temporary one until `finalize`."""

    def discard(self, name: str) -> None:
        """Remove the regions of a file that were written before `finalize`, and were not joined."""

    def finalize(self, name: str, size: int, on_progress: Callable[[int], None] = lambda _: None) -> None:
        """Publish a file whose regions are all written. Does nothing if it is already published.

        An object store copies the regions into one object, and calls `on_progress` with the bytes of each step.
        """


class Locks(Protocol):
    """How processes that write to the same folder exclude each other."""

    def exclusive(self, name: str, on_wait: Callable[[str], None] | None = None) -> AbstractContextManager[None]:
        """Hold the folder alone, where it supports locks; an object store lets every process write.

        If another process holds it, `on_wait` is called with that process and the call blocks. Without `on_wait`
        UsageError is raised.
        """

    def shared(self, name: str) -> AbstractContextManager[None]:
        """Hold the folder together with other processes that call `shared`, and exclude those that call `exclusive`."""

    def holder(self, name: str) -> str | None:
        """The process id of the exclusive holder, as text. None if no process holds it, or in an object store."""

    def remove_if_empty(self, name: str) -> None:
        """Remove the folder if it contains nothing but its lock file, which the caller holds."""

    def lease(self, name: str) -> Lease:
        """A lease of that name, not yet taken."""

    def check_conditional_create(self) -> None:
        """Raise StorageError if two processes could both publish the first file of a name. A disk always passes."""


class Folder(Protocol):
    """Published files below a root."""

    root: str
    is_remote: bool  # whether reads wait for a network, so that callers should prefetch
    ranges: Ranges
    regions: Regions
    locks: Locks

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

    def numbered_sizes(self, directory: str, count: int) -> Iterator[list[tuple[str, int]]]:
        """The published files directly inside a directory, each with its size in bytes, in batches.

        The names of the up to `count` files begin with eight digits.
        """

    def size(self, name: str) -> int:
        """The size of a file in bytes."""

    def read(self, name: str, limit_bytes: int | None = None) -> bytes:
        """The content of a file, or its first `limit_bytes` bytes."""

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

    def sync_directory(self, directory: str) -> None:
        """Make the names in a directory survive a power cut."""

    def append(self, name: str, data: bytes) -> None:
        """Add lines to a journal that several processes write."""

    def discard(self, name: str) -> None:
        """Remove a file if it exists."""

    def remove(self, directory: str) -> None:
        """Remove a directory with its files if it exists."""

    def remove_temporaries(self, directory: str) -> None:
        """Remove what interrupted writers left. The caller must hold the lock."""


def publish_new(folder: Folder, name: str, data: bytes) -> bool:
    """Publish a file unless one exists. Returns False if one exists with another content."""
    while not folder.publish_if_absent(name, pa.py_buffer(data)):
        try:
            return folder.read(name) == data
        except StoreError:
            if folder.exists(name):
                raise  # else it was removed after the attempt
    return True


def free_bytes(folder: Folder) -> int | None:
    """The space left on the folder's file system. None for an object store, which has no limit."""
    return None if folder.is_remote else machine.free_disk_bytes(folder.root)


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


class Threads(ThreadPoolExecutor):
    """Threads that run each function with the settings of storage of the thread that submitted it."""

    def submit(self, fn: Callable[Args, Value], /, *args: Args.args, **kwargs: Args.kwargs) -> Future[Value]:
        """Run a function in one of the threads."""
        return super().submit(bind(fn), *args, **kwargs)


@functools.lru_cache(maxsize=1)
def _pool(_process: int) -> Threads:
    return Threads(THREADS, thread_name_prefix="fetch")


def io_threads() -> Threads:
    """This process's threads for network requests and for writing files. A forked process makes its own."""
    return _pool(os.getpid())


def prefetch_map(
    folder: Folder, function: Callable[[Item], Value], items: Iterable[Item], ahead: int = PREFETCH_FILES
) -> Iterator[Value]:
    """Map a function that reads from a folder. If it is remote, the next `ahead` calls run in the background."""
    if not folder.is_remote:
        yield from map(function, items)
        return
    futures: deque[Future[Value]] = deque()
    for item in items:
        futures.append(io_threads().submit(function, item))
        if len(futures) > ahead:
            yield futures.popleft().result()
    while futures:
        yield futures.popleft().result()


def thread_map(
    folder: Folder, function: Callable[[Item], Value], items: Sequence[Item], ahead: int = PREFETCH_FILES
) -> Iterator[Value]:
    """Map a function that computes on what it reads. A local folder has a thread per core, a remote one prefetches.

    The function must spend its time outside the interpreter lock.
    """
    if folder.is_remote:
        yield from prefetch_map(folder, function, items, ahead)
        return
    with Threads(machine.cores()) as threads:
        for start in range(0, len(items), BATCH_ITEMS):
            yield from threads.map(function, items[start : start + BATCH_ITEMS])
