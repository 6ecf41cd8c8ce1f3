"""Files on a disk that several processes write in regions. They have temporary names until all regions are written."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable, Iterator
from typing import BinaryIO

from tokenmill.errors import StoreError
from tokenmill.storage.folder import Folder
from tokenmill.storage.local.guards import require_unlinked
from tokenmill.storage.local.writing import EagerFile, sync_directory, writing


class DiskRegions:
    """Files of a folder on a disk, which are written in place."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

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
