"""Check the files and the records of an export against the manifest and its checksums."""

from __future__ import annotations

import os.path
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import xxhash

from tokenmill.errors import CorruptStore
from tokenmill.exports import records
from tokenmill.exports.file_checks import EXPORT_AGAIN, WRITE_AGAIN
from tokenmill.storage import Folder, folder_at


class ByteRange(msgspec.Struct, frozen=True):
    """Bytes of a file that have one hash: all of it, or the piece that one worker wrote."""

    name: str
    start: int
    bytes: int
    xxh3: str
    file_bytes: int


def byte_ranges(manifest: pa.Table) -> list[ByteRange]:
    """Everything that the manifest of a complete export names; pieces of a file follow each other."""
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
            raise CorruptStore("a file of an export is gone", f"file         {path}", EXPORT_AGAIN)
        if folder.size(stretch.name) != stretch.file_bytes:
            expected = f"expected     {stretch.file_bytes:,} bytes"
            found = f"found        {folder.size(stretch.name):,}"
            headline = "a file of an export has another size"
            raise CorruptStore(headline, f"file         {path}", expected, found, WRITE_AGAIN)
        digest = xxhash.xxh3_128()
        for data in folder.chunks(stretch.name, stretch.start, stretch.bytes):
            digest.update(data)
        if digest.hexdigest() != stretch.xxh3:
            where = f"bytes        {stretch.start:,} to {stretch.start + stretch.bytes:,}"
            headline = "a file of an export is not as it was written"
            raise CorruptStore(headline, f"file         {path}", where, WRITE_AGAIN)
        return stretch.bytes


@dataclass(frozen=True, slots=True)
class IsAsWritten:
    """The function that compares the files of a shard with their checksums."""

    out: str

    def __call__(self, files: tuple[int, tuple[ByteRange, ...]]) -> bool:
        """Whether the files, which come with the number of their shard, are as they were written."""
        check = CheckByteRange(self.out)
        try:
            for stretch in files[1]:
                check(stretch)
        except CorruptStore:
            return False
        return True


@dataclass(frozen=True, slots=True)
class CheckRecords:
    """The function that compares the records of some shards with the rows that the manifest has of them."""

    out: str
    export: str

    def __call__(self, rows: tuple[dict[str, Any], ...]) -> int:
        """Raise an error that names the record if it is not as it was written; returns how many were read."""
        folder = folder_at(self.out)
        for row in rows:
            shard = row["shard"]
            record = records.read(folder, shard)
            records.read_origins(folder, shard)
            if record.export != self.export:
                raise records.corrupt(folder, shard, "it is of another export")
            if records.manifest([record], []).to_pylist() != [row]:
                raise records.corrupt(folder, shard, "it is not the record that the manifest describes")
        return len(rows)


def _pattern(name: str) -> str:
    """A name without its numbers and its split: what trainers find by a pattern is alike."""
    directory, _, last = name.rpartition("/")
    return f"{directory}/{_VARIABLE.sub('*', last)}"


def unlisted(folder: Folder, listed: Collection[str]) -> list[str]:
    """The files beside those of an export that are called alike, so that a trainer would read them as well."""
    patterns = {_pattern(name) for name in listed}
    directories = sorted({name.rpartition("/")[0] for name in listed})
    there = (os.path.join(directory, name) for directory in directories for name in folder.names(directory or "."))
    return sorted(name for name in there if name not in listed and _pattern(name) in patterns)


_VARIABLE = re.compile(r"\d+|train|val")
