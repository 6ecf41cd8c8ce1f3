"""The checksum of a file or of a byte range of it, read in chunks."""

from __future__ import annotations

import xxhash

from tokenmill.storage.folder import Folder


def xxh3_of(folder: Folder, name: str, start: int = 0, count: int | None = None) -> str:
    """The XXH3 (128 bits, in hex) of `count` bytes from `start`, by default of the whole file."""
    digest = xxhash.xxh3_128()
    for data in folder.ranges.chunks(name, start, folder.size(name) if count is None else count):
        digest.update(data)
    return digest.hexdigest()
