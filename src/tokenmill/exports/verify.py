"""Check the files of an export against the checksums that were taken when they were written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import msgspec
import xxhash

from tokenmill.errors import CorruptStore
from tokenmill.exports import records
from tokenmill.storage import Folder, folder_at


class ByteRange(msgspec.Struct, frozen=True):
    """Bytes of a file that have one hash: all of it, or the piece that one worker wrote."""

    name: str
    start: int
    bytes: int
    xxh3: str
    file_bytes: int


def byte_ranges(folder: Folder) -> list[ByteRange]:
    """Everything that the manifest of a complete export names; pieces of a file follow each other."""
    manifest = records.read_manifest(folder)
    written = [file for files in manifest["files"].to_pylist() for file in files]
    written += [msgspec.to_builtins(file) for file in records.read_others(manifest)]
    sizes: Counter[str] = Counter()
    for file in written:
        sizes[file["name"]] += file["bytes"]
    found = []
    before: Counter[str] = Counter()
    for file in written:
        found.append(ByteRange(**file, start=before[file["name"]], file_bytes=sizes[file["name"]]))
        before[file["name"]] += file["bytes"]
    return found


@dataclass(frozen=True, slots=True)
class CheckByteRange:
    """The function that reads a stretch of an export's file and compares its hash."""

    out: str

    def __call__(self, stretch: ByteRange) -> int:
        """Raise an error that names the file if it is not as it was written; returns the bytes read."""
        folder = folder_at(self.out)
        path = folder.path(stretch.name)
        if not folder.exists(stretch.name):
            raise CorruptStore("a file of an export is gone", f"file         {path}", _ANEW)
        if folder.size(stretch.name) != stretch.file_bytes:
            expected = f"expected     {stretch.file_bytes:,} bytes"
            found = f"found        {folder.size(stretch.name):,}"
            raise CorruptStore("a file of an export has another size", f"file         {path}", expected, found, _ANEW)
        digest = xxhash.xxh3_128()
        for data in folder.chunks(stretch.name, stretch.start, stretch.bytes):
            digest.update(data)
        if digest.hexdigest() != stretch.xxh3:
            where = f"bytes        {stretch.start:,} to {stretch.start + stretch.bytes:,}"
            raise CorruptStore("a file of an export is not as it was written", f"file         {path}", where, _ANEW)
        return stretch.bytes


_ANEW = "Remove the export's directory and export again."
