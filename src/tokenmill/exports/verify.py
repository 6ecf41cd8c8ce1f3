"""Check the files and the records of an export against the manifest and its checksums."""

from __future__ import annotations

import os.path
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from tokenmill.errors import CorruptStore
from tokenmill.exports import records
from tokenmill.exports.file_checks import EXPORT_AGAIN, WRITE_AGAIN
from tokenmill.storage import Folder, folder_at
from tokenmill.storage.checksum import xxh3_of

# What differs between the names of an export's files.
_VARIABLE = re.compile(r"\d+|train|val")


class ByteRange(msgspec.Struct, frozen=True):
    """Bytes of a file with one checksum: the whole file, or the region that one worker wrote."""

    name: str
    start: int
    bytes: int
    xxh3: str
    file_bytes: int


def byte_ranges(manifest: records.ExportManifest) -> list[ByteRange]:
    """Return the byte ranges of all files in the manifest. The regions of one file are in order."""
    written = [file for files in manifest.rows["files"].to_pylist() for file in files]
    written += [msgspec.to_builtins(file) for file in manifest.others]
    sizes: Counter[str] = Counter()
    for file in written:
        sizes[file["name"]] += file["bytes"]
    ranges = []
    before: Counter[str] = Counter()
    for file in written:
        ranges.append(ByteRange(**file, start=before[file["name"]], file_bytes=sizes[file["name"]]))
        before[file["name"]] += file["bytes"]
    return ranges


@dataclass(frozen=True, slots=True)
class CheckByteRange:
    """Reads a byte range of an export's file and compares its checksum."""

    out: str

    def __call__(self, byte_range: ByteRange) -> int:
        """Return the number of bytes read. Raises CorruptStore if the file is not as it was written."""
        folder = folder_at(self.out)
        path = folder.path(byte_range.name)
        if not folder.exists(byte_range.name):
            raise CorruptStore("a file of an export is missing", f"file         {path}", EXPORT_AGAIN)
        if folder.size(byte_range.name) != byte_range.file_bytes:
            expected = f"expected     {byte_range.file_bytes:,} bytes"
            actual = f"found        {folder.size(byte_range.name):,}"
            headline = "a file of an export has another size"
            raise CorruptStore(headline, f"file         {path}", expected, actual, WRITE_AGAIN)
        if xxh3_of(folder, byte_range.name, byte_range.start, byte_range.bytes) != byte_range.xxh3:
            where = f"bytes        {byte_range.start:,} to {byte_range.start + byte_range.bytes:,}"
            headline = "a file of an export is not as it was written"
            raise CorruptStore(headline, f"file         {path}", where, WRITE_AGAIN)
        return byte_range.bytes


@dataclass(frozen=True, slots=True)
class IsAsWritten:
    """Compares the files of a shard with their checksums."""

    out: str

    def __call__(self, files: tuple[int, tuple[ByteRange, ...]]) -> bool:
        """Return whether the files are as they were written. The item is a shard's number and its files."""
        check = CheckByteRange(self.out)
        try:
            for byte_range in files[1]:
                check(byte_range)
        except CorruptStore:
            return False
        return True


@dataclass(frozen=True, slots=True)
class CheckRecords:
    """Compares the records of some shards with their rows of the manifest."""

    out: str
    export: str

    def __call__(self, rows: tuple[dict[str, Any], ...]) -> int:
        """Return the number of records read. Raises CorruptStore if one is not as it was written."""
        folder = folder_at(self.out)
        for row in rows:
            shard = row["shard"]
            record = records.read(folder, shard)
            records.read_origins(folder, shard)
            if record.export != self.export:
                raise records.corrupt(folder, shard, "it is of another export")
            record = msgspec.structs.replace(record, files=())  # an erasure gives a shard other files
            if records.manifest_rows([record]).to_pylist() != [row | {"files": []}]:
                raise records.corrupt(folder, shard, "it is not the record that the manifest describes")
        return len(rows)


def _pattern(name: str) -> str:
    """Replace the numbers and the split in a file name by `*`, as a trainer's pattern would."""
    directory, _, last = name.rpartition("/")
    return f"{directory}/{_VARIABLE.sub('*', last)}"


def unlisted(folder: Folder, listed: Collection[str]) -> list[str]:
    """Return files beside those of an export with such similar names that a trainer would read them, too."""
    patterns = {_pattern(name) for name in listed}
    directories = sorted({name.rpartition("/")[0] for name in listed})
    there = (os.path.join(directory, name) for directory in directories for name in folder.names(directory or "."))
    return sorted(name for name in there if name not in listed and _pattern(name) in patterns)
