"""Check the files and records of an export against its manifest, in workers, and compare the export with its stores."""

from __future__ import annotations

import os.path
import re
from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import msgspec

from tokenmill.errors import CorruptStore, IncompleteStore, StorageError, StoreError
from tokenmill.executors import progress
from tokenmill.executors.checks import Checks
from tokenmill.exports import records
from tokenmill.exports.converge import converge
from tokenmill.exports.file_checks import EXPORT_AGAIN, WRITE_AGAIN
from tokenmill.exports.job import PLAN, FrozenExport, is_begun, is_complete, read_frozen
from tokenmill.exports.known_exports import forgotten_exports, known_exports, require_address
from tokenmill.exports.shards import read_export_plan
from tokenmill.exports.sort_documents import chunks
from tokenmill.storage import Folder, folder_at
from tokenmill.storage.checksum import xxh3_of
from tokenmill.store.chain import Head
from tokenmill.store.collection import open_collection
from tokenmill.store.layout import restart_advice
from tokenmill.token_files import FORMATS

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
    """Compares the files of a shard with their checksums. A file may not be finalized yet."""

    out: str

    def __call__(self, files: tuple[int, tuple[ByteRange, ...]]) -> bool:
        """Return whether the files are as they were written. The item is a shard's number and its files."""
        regions = folder_at(self.out).regions
        # Another rank may finalize the file while it is read under its temporary name.
        return all(
            any(self._has(file, name) for name in dict.fromkeys([regions.file(file.name), file.name]))
            for file in files[1]
        )

    def _has(self, byte_range: ByteRange, name: str) -> bool:
        try:
            CheckByteRange(self.out)(msgspec.structs.replace(byte_range, name=name))
        except StoreError:
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
            record, _ = records.read_whole(folder, shard)
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


def check_exports(store: Folder, head: Head, checks: Checks) -> tuple[dict[str, int], list[str]]:
    """Check each export that a store knows of, wherever it is. One that is not complete could not be checked.

    One that is not found is a problem if documents were erased from the store. Returns the number of files of each
    export, and notices that name exports that were not checked.
    """
    exports = {}
    notices = [f"export {name} not checked: {reason}" for name, reason in forgotten_exports(store).items()]
    begun = [path for path in map(store.path, FORMATS) if is_begun(folder_at(path))]
    for directory in dict.fromkeys([*begun, *known_exports(store)]):
        export, name = folder_at(directory), directory.removeprefix(f"{store.root}/")
        try:
            frozen = _require_export(export, store, head)
        except IncompleteStore as error:
            checks.unfinished.append(error.text)
            continue
        except CorruptStore as error:
            checks.problems.append(error.text)
            continue
        except (StoreError, StorageError) as error:
            if head.number:
                checks.problems.append(f"export {name} was not reached: {error.text}")
            else:
                notices.append(f"export {name} not checked: {error.headline}")
            continue
        reason = compare_stores(export, frozen, checks)
        notices += [] if reason is None else [f"export {name}: store not compared: {reason}"]
        exports[name] = check_export(export, frozen, checks)
    return exports, notices


def _require_export(export: Folder, store: Folder, head: Head) -> FrozenExport:
    """Read a complete export of a store."""
    frozen = read_frozen(export)
    if frozen is None:
        raise StoreError("there is no export in it any more")
    if not is_complete(export):
        where = f"export       {export.root}"
        raise IncompleteStore("an export is not complete, so it was not checked", where, EXPORT_AGAIN)
    if head.identity not in [one.identity for one in frozen.stores]:
        raise other_store(store, export)
    require_address(export, frozen, store, head.identity)
    return frozen


def compare_stores(export: Folder, frozen: FrozenExport, checks: Checks) -> str | None:
    """Compare an export with its stores. Returns the reason if a store cannot be read."""
    directories = frozen.directories(export)
    if not directories:
        return "it is not known where it is"
    try:
        stores = open_collection(directories, is_repeated=True)
        for member, one in zip(stores.members, frozen.stores, strict=True):
            if member.head.identity != one.identity:
                raise other_store(member.folder, export)
        converge(export, frozen, checks)
    except CorruptStore as error:
        checks.problems.append(error.text)
    except (StoreError, StorageError) as error:
        return error.headline
    return None


def other_store(store: Folder, export: Folder) -> CorruptStore:
    """Return the error for an export of other parts than a store has."""
    advice = restart_advice(export)
    return CorruptStore(
        "the export was made from other parts than the store has now",
        f"store        {store.root}",
        f"export       {export.root}",
        f"If the store was made again: {advice[0].lower()}{advice[1:]}",
    )


def check_export(export: Folder, frozen: FrozenExport, checks: Checks) -> int:
    """Compare the records and each file with their checksums; return the number of files."""
    try:
        manifest = records.read_manifest(export, frozen.job.digest())
        ranges = byte_ranges(manifest)
        if export.exists(PLAN):
            read_export_plan(export, frozen)
    except CorruptStore as error:
        checks.problems.append(error.text)
        return 0
    rows = [tuple(chunk) for chunk in chunks(manifest.rows.to_pylist())]
    for _ in checks.run(CheckRecords(export.root, frozen.job.digest()), rows, lambda _: "the records of shards"):
        pass
    checks.report.begin(f"verify {frozen.job.format}", sum(item.bytes for item in ranges), 0, checks.workers)
    step = progress.Step()
    for done in checks.run(CheckByteRange(export.root), ranges, lambda item: item.name):
        step = progress.Step(step.text_bytes + done.value, step.tokens, step.units + 1)
        checks.report.advance(done.value, step)
    listed = {item.name for item in ranges}
    for name in unlisted(export, listed):
        lines = f"file         {export.path(name)}", "Remove the file, or move it to another directory."
        stray = CorruptStore("a file is named like a file of the export, but is not part of it", *lines)
        checks.problems.append(str(stray))
    return len(listed)
