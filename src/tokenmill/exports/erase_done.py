"""What erasures did in exports, as the store keeps it: a file for each request and export."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import msgspec

from tokenmill.errors import StorageError, StoreError
from tokenmill.exports import job as names
from tokenmill.exports import records
from tokenmill.exports.erase_shard import ShardErasure
from tokenmill.exports.job import FrozenExport, read_frozen
from tokenmill.exports.verify import IsAsWritten, byte_ranges
from tokenmill.storage import Folder, folder_at, read_existing
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import layout
from tokenmill.store.erasures import erasure_file
from tokenmill.store.layout import MAX_JSON_BYTES

EXPORT_PREFIX = "export-"
"""The names of the files that keep what an erasure did in an export begin with this."""


class ExportErasure(msgspec.Struct, frozen=True):
    """What an erasure did in an export. `problem` says why the export could not be reached; then nothing was done.

    `removed` is set if the export was not complete: what it had written was removed, and it begins again.
    """

    directory: str
    shards: tuple[ShardErasure, ...] = ()
    removed: bool = False
    problem: str = ""


def done_file(store: Folder, request: str, directory: str) -> str:
    """The file of an erasure that keeps what was done in an export, named by the directory of the export."""
    digest = hashlib.sha256(directory.removeprefix(f"{store.root}/").encode()).hexdigest()
    return erasure_file(request, f"{EXPORT_PREFIX}{digest[:16]}.json")


def forget_restored(store: Folder, requests: Sequence[str], directory: str) -> bool:
    """Forget what erasures did in an export that has other files now. Returns whether it has.

    Such an export was restored from a copy, or made again. `requests` are the erasures in their order.
    """
    files = [done_file(store, request, directory) for request in requests]
    done = [read_done(store, name) for name in files]
    if not is_restored(directory, [one for one in done if one is not None]) and None not in done:
        return False
    for name in files:
        store.discard(name)
    return True


def is_restored(directory: str, done: Sequence[ExportErasure]) -> bool:
    """Whether an export has other shards than these erasures have left, in their order. Their files are read."""
    expected = {item.shard: msgspec.to_builtins(item.after) for one in done for item in one.shards}
    if not expected:
        return False
    folder = folder_at(directory)
    try:
        frozen = read_frozen(folder, unfinished_too=True)
        if frozen is None or not folder.exists(names.MANIFEST):
            return False
        listed = listed_files(folder, frozen)
        if any(listed.get(shard) != list(after) for shard, after in expected.items()):
            return True
        ranges = byte_ranges(records.read_manifest(folder, frozen.job.digest()))
    except (StoreError, StorageError):
        return False
    changed = {(file["name"], file["xxh3"]) for shard in expected for file in listed[shard]}
    files = tuple(one for one in ranges if (one.name, one.xxh3) in changed)
    return not IsAsWritten(directory)((0, files))


def listed_files(folder: Folder, frozen: FrozenExport) -> dict[int, list[dict[str, Any]]]:
    """The files of each shard of a complete export, as its manifest lists them."""
    manifest = records.read_manifest(folder, frozen.job.digest()).to_pylist()
    return {row["shard"]: list(row["files"]) for row in manifest}


def done_exports(folder: Folder, request: str) -> list[str]:
    """The exports in which an erasure is done, also those that it removed."""
    files = sorted(name for name in folder.names(erasure_file(request, ".")) if name.startswith(EXPORT_PREFIX))
    done = [read_done(folder, erasure_file(request, name)) for name in files]
    return [export.directory for export in done if export is not None]


def read_done(folder: Folder, name: str) -> ExportErasure | None:
    """Read what an erasure did in an export; None if it has not been done."""
    data = read_existing(folder, name, MAX_JSON_BYTES)
    try:
        return None if data is None else decode(data, ExportErasure)
    except MalformedDataError as damage:
        raise layout.damaged(folder, name, str(damage)) from damage
