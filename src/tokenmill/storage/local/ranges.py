"""Byte ranges of files on a disk."""

from __future__ import annotations

from collections.abc import Iterator

from tokenmill.storage.folder import Folder, ReadRange
from tokenmill.storage.local.guards import open_regular, truncated_error

CHUNK_BYTES = 1 << 20


class DiskRanges:
    """Byte ranges of the files of a folder on a disk."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

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
