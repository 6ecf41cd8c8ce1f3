"""A file on a disk that several processes write in regions. It has a temporary name until all regions are written."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from typing import BinaryIO

from tokenmill.errors import StoreError
from tokenmill.storage.local.guards import require_unlinked
from tokenmill.storage.local.writing import EagerFile, sync_directory, writing


def unfinished_name(name: str) -> str:
    """The name of the file until it is finalized."""
    return os.path.join(os.path.dirname(name), f".{os.path.basename(name)}.unsealed")


@contextlib.contextmanager
def write_region(final: str, unfinished: str, size: int, start: int) -> Iterator[BinaryIO]:
    """Write a region in place.

    A late writer may find the file finalized. It writes into that file, and writes the bytes that are already there.
    """
    with writing(final):
        descriptor = _open(require_unlinked(final), require_unlinked(unfinished))
        with io.BufferedWriter(EagerFile(descriptor, "wb")) as file:
            if os.path.getsize(descriptor) != size:
                os.ftruncate(descriptor, size)
            file.seek(start)
            yield file
            file.flush()
            os.fsync(descriptor)


def _open(final: str, unfinished: str) -> int:
    if not os.path.exists(final):
        descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT, 0o644)
        if not os.path.exists(final) or os.path.samestat(os.fstat(descriptor), os.stat(final)):
            return descriptor
        os.close(descriptor)  # it was finalized in between, and this is a new, empty file
        os.unlink(unfinished)
    return os.open(final, os.O_WRONLY)


def written_bytes(final: str, unfinished: str) -> int | None:
    """The size of the file, finalized or not; None if it does not exist."""
    for path in (final, unfinished):
        with contextlib.suppress(OSError):
            return os.path.getsize(path)
    return None


def finalize(final: str, unfinished: str, size: int) -> None:
    """Give the file its name. Does nothing if it has it already."""
    if written_bytes(final, unfinished) != size:
        raise StoreError(f"{final} disappeared while it was written", "Run the same command again.")
    with writing(final):
        if not os.path.exists(final):
            os.rename(unfinished, final)
        sync_directory(os.path.dirname(final))
