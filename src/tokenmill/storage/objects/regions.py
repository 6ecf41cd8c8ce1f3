"""An object that several processes write in regions. Each region is an object of its own until all are joined."""

from __future__ import annotations

import itertools
import posixpath
from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from tokenmill.errors import StoreError
from tokenmill.storage.addresses import FileInfo
from tokenmill.storage.folder import Folder
from tokenmill.storage.prefetch import prefetch_map
from tokenmill.storage.range_file import CHUNK_BYTES

PREFETCH_CHUNKS = 6  # fetched in the background while one chunk is written


def region_directory(name: str) -> str:
    """The directory of an object's regions."""
    return posixpath.join(posixpath.dirname(name), f".{posixpath.basename(name)}.pieces")


def region_name(name: str, start: int) -> str:
    """The name of the region that begins at an offset."""
    return f"{region_directory(name)}/{start:020d}"


def read_regions(
    folder: Folder, name: str, size: int, regions: Iterable[FileInfo], fetch: Callable[[FileInfo, int, int], pa.Buffer]
) -> Iterator[pa.Buffer]:
    """The bytes of all regions in order. Raises StoreError if they do not make up `size` bytes without a gap."""
    root = folder.path(region_directory(name))
    ordered = sorted(regions, key=lambda region: region.path)
    ends = list(itertools.accumulate(region.size for region in ordered))
    starts = [int(region.path[len(root) + 1 :]) for region in ordered]
    if [0, *ends] != [*starts, size]:
        raise StoreError(f"a region of {folder.path(name)} is missing", "Run the same command again.")
    chunks = [
        (region, start, min(start + CHUNK_BYTES, region.size))
        for region in ordered
        for start in range(0, region.size, CHUNK_BYTES)
    ]
    return prefetch_map(folder, lambda chunk: fetch(*chunk), chunks, PREFETCH_CHUNKS)
