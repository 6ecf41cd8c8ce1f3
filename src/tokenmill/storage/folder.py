"""A directory of ours, on a disk or in an object store. A file appears in it whole or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import BinaryIO, Protocol

import pyarrow as pa

from tokenmill.storage.lease import Lease


class Folder(Protocol):
    """Published files, addressed by names relative to the folder's root."""

    root: str

    @property
    def is_remote(self) -> bool:
        """Whether it is behind a network, so that waiting for it should be done in the background."""

    def path(self, name: str) -> str:
        """The full path or URL of a name, which must stay inside the folder."""

    def create(self, name: str = ".") -> bool:
        """Make the folder, or one inside it, where folders have to be made; whether it was made now."""

    def exists(self, name: str) -> bool:
        """Whether a file of that name has been published."""

    def names(self, directory: str) -> list[str]:
        """The names of the published files directly inside a directory, unordered; none if it does not exist."""

    def numbered_names(self, directory: str, count: int) -> Iterator[list[str]]:
        """The same where there may be `count` files that are called by their numbers, of eight digits; in lots."""

    def numbered_sizes(self, directory: str, count: int) -> Iterator[list[tuple[str, int]]]:
        """The same with the size of each file."""

    def size(self, name: str) -> int:
        """The size of a file in bytes."""

    def read(self, name: str, limit_bytes: int | None = None) -> bytes:
        """The content of a file, or its first bytes."""

    def lines(self, name: str) -> Iterator[bytes]:
        """The lines of a file, one after the other."""

    def chunks(self, name: str, start: int, count: int) -> Iterator[bytes]:
        """A stretch of a file, some of it at a time."""

    def read_at(self, name: str, start: int, count: int) -> bytes:
        """Exactly these bytes of a file."""

    def map(self, name: str) -> pa.NativeFile:
        """A published, and therefore immutable, file for reading, without a copy where that can be."""

    def buffer(self, name: str) -> pa.Buffer:
        """All bytes of such a file."""

    def publish(self, name: str, *, durable: bool = True, first: bool = False) -> AbstractContextManager[BinaryIO]:
        """Write a file that appears under its name when the block ends, complete, or never.

        If `settled`, the name survives a loss of power from then on; if not, from the next `settle` on. If it is to be
        the `first` of that name, and there is one, Overtaken is raised.
        """

    def publish_if_absent(self, name: str, data: pa.Buffer) -> bool:
        """Publish a file unless there is one already, whatever it holds; whether it was."""

    def check_conditional_create(self) -> None:
        """Raise StorageError if two processes could both publish the first file of a name; on a disk they cannot."""

    def publish_new(self, name: str, data: bytes) -> bool:
        """Publish a file unless there is one; False if there is one with another content."""

    def write_region(self, name: str, size: int, start: int) -> AbstractContextManager[BinaryIO]:
        """Write a stretch of a file that several writers fill; it appears under its name when it is sealed."""

    def region_exists(self, name: str, size: int, start: int, count: int) -> bool:
        """Whether a stretch that was filled is there, be the file of that size sealed or not."""

    def finalize(self, name: str, size: int, told: Callable[[int], None] = lambda _: None) -> None:
        """Publish a file whose stretches have all been filled; nothing happens if that was done before.

        Where they have to be joined, it is `told` how many bytes more are done.
        """

    def sync_directory(self, directory: str) -> None:
        """Make the names of the files in a directory survive a loss of power."""

    def append(self, name: str, data: bytes) -> None:
        """Add lines to a journal, which several writers may keep at a time."""

    def discard(self, name: str) -> None:
        """Remove a file, if it is there."""

    def remove(self, directory: str) -> None:
        """Remove a directory of files, if it is there."""

    def remove_if_empty(self, lock: str) -> None:
        """Remove the folder itself if it is empty but for its lock, which the caller holds; else nothing happens."""

    def remove_temporaries(self, directory: str) -> int:
        """Remove what an interrupted writer left behind; call it only while holding the lock."""

    def lock(self, name: str, waiting: Callable[[str], None] | None = None) -> AbstractContextManager[None]:
        """Hold the folder for this process, where only one may write to it at a time."""

    def shared_lock(self, name: str) -> AbstractContextManager[None]:
        """Hold the folder together with others who share it, and with nobody else."""

    def lease(self, name: str) -> Lease:
        """Ask to be the only one, of all who share the folder, to do something."""

    def lock_holder(self, name: str) -> str | None:
        """The process that holds the folder for itself now, if that can be told."""

    def free_bytes(self) -> int | None:
        """The space left for it; None where there is no end to it."""
