"""Objects that several processes write in regions. Each region is an object of its own until all are joined."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO

import pyarrow as pa

from tokenmill.errors import SourceError, StoreError
from tokenmill.storage.folder import Folder, prefetch_map
from tokenmill.storage.objects import read
from tokenmill.storage.objects.clients import BucketClients
from tokenmill.storage.objects.errors import explained
from tokenmill.storage.objects.upload import Upload, part_bytes
from tokenmill.storage.range_file import CHUNK_BYTES

PREFETCH_CHUNKS = 6  # fetched in the background while one chunk is written


@dataclass(frozen=True, slots=True)
class BucketRegions:
    """Objects of a folder, and the objects of their regions."""

    _folder: Folder
    _clients: BucketClients

    def write(self, name: str, size: int, start: int) -> AbstractContextManager[BinaryIO]:  # noqa: ARG002 - protocol
        """Write a region as an object of its own. `finalize` joins these objects."""
        return self._folder.publish(_region_name(name, start))

    def exists(self, name: str, size: int, start: int, count: int) -> bool:
        """Whether the region exists, as an object of its own or in the finalized object."""
        final_bytes = self._size(name)
        return self._size(_region_name(name, start)) == count if final_bytes is None else final_bytes == size

    def file(self, name: str) -> str:
        """The object itself: before `finalize`, each region is an object of its own."""
        return name

    def discard(self, name: str) -> None:
        """Remove the objects of the regions."""
        self._folder.remove(_directory(name))

    def finalize(self, name: str, size: int, on_progress: Callable[[int], None] = lambda _: None) -> None:
        """Join the regions: read them in order while the final object is uploaded."""
        if self._size(name) != size:
            url = self._folder.path(name)
            try:
                chunks = self._read(name, size)
                upload = Upload(self._clients.writer, url, part_bytes(size))
                with explained(url, "write"), upload:
                    for data in chunks:
                        upload.write(data)
                        on_progress(data.size)
            except (StoreError, SourceError):
                if self._size(name) != size:  # another machine may have finalized it and removed the regions
                    raise
        self.discard(name)

    def _size(self, name: str) -> int | None:
        """The size of an object; None if there is no such object."""
        file = read.stat_existing(self._folder.path(name), self._clients.reader)
        return None if file is None else file.size

    def _read(self, name: str, size: int) -> Iterator[pa.Buffer]:
        """The bytes of all regions in order. Raises StoreError if they do not make up `size` bytes without a gap."""
        root = self._folder.path(_directory(name))
        regions = sorted(read.below(root, self._clients.reader), key=lambda region: region.path)
        ends = list(itertools.accumulate(region.size for region in regions))
        starts = [int(region.path[len(root) + 1 :]) for region in regions]
        if [0, *ends] != [*starts, size]:
            raise StoreError(f"a region of {self._folder.path(name)} is missing", "Run the same command again.")
        chunks = [
            (region.path, region.fingerprint, start, min(start + CHUNK_BYTES, region.size))
            for region in regions
            for start in range(0, region.size, CHUNK_BYTES)
        ]
        return prefetch_map(
            self._folder, lambda chunk: read.fetch(*chunk, self._clients.reader), chunks, PREFETCH_CHUNKS
        )


def _directory(name: str) -> str:
    """The directory of an object's regions."""
    return posixpath.join(posixpath.dirname(name), f".{posixpath.basename(name)}.pieces")


def _region_name(name: str, start: int) -> str:
    """The name of the region that begins at an offset."""
    return f"{_directory(name)}/{start:020d}"
