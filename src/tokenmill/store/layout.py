"""The files and directories of a run: their names, which of them exist, and how they are removed.

`run.json` is published after the plan, the sources and the vocabulary. Its existence means that the run is frozen.
`manifest.parquet` is published last. Its existence means that the store is complete.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.errors import CorruptStore, StoreError, UsageError
from tokenmill.storage import Folder
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode

RUN = "run.json"
SOURCES = "sources.parquet"
PLAN = "plan.parquet"
MANIFEST = "manifest.parquet"
LOG = "log.jsonl"
LOCK = ".lock"
PARTS = "parts"
TOKENIZER = "tokenizer"
QUARANTINE = "quarantine"
KEPT = "kept"
DENY = "deny"
DRIVERS = "drivers"
MISMATCH = "engine-mismatch.json"
RECHECKED = "rechecked"
SPLITS = "splits"
CHANGES = "changes"
EXPORTS = "exports"
SPOOL = "spool"
EXPORT_STATE = ".tokenmill"
EXPORT = f"{EXPORT_STATE}/export.json"
EXPORT_PLAN = f"{EXPORT_STATE}/plan.parquet"

_DIRECTORIES = (TOKENIZER, PARTS, KEPT, DENY, QUARANTINE, DRIVERS, RECHECKED, SPLITS, CHANGES, EXPORTS, SPOOL)

MAX_JSON_BYTES = 64 << 20
"""No `run.json` or `engine-mismatch.json` is larger. Readers stop there."""

REQUEST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
"""What a request of an erasure may be called."""

_PART = re.compile(r"([0-9]{8,18})(?:-[0-9a-f]{16})?\.arrow")

_PREPARE = "Run the same `tokenmill prepare` again:"
_ADVICE = {
    "run.": f"Remove {RUN} and run the same `tokenmill prepare` again: it keeps the parts that belong to the sources.",
    "plan": f"{_PREPARE} with the options and sources of before it makes the plan again.",
    "sources": f"{_PREPARE} with the options and sources of before it makes the list of sources again.",
    "manifest.": f"{_PREPARE} it checks the parts and writes the manifest again.",
    f"{PARTS}/": "Run the same `tokenmill prepare` with --repair: it makes the damaged parts again, and no other.",
    f"{KEPT}/": "Run the same `tokenmill prepare` with --repair: it makes the damaged parts again, and no other.",
    f"{TOKENIZER}/": f"{_PREPARE} it writes the vocabulary again.",
    f"{DENY}/": f"{_PREPARE} with the list of before as --deny it writes the list again.",
}
"""The advice for a damaged file, by the first characters of its name."""

_CHANGED = re.compile(rf"({PARTS}|{KEPT})/[0-9]{{8,18}}-[0-9a-f]{{16}}\.(arrow|parquet)")
RESTORE = "Restore it, or an earlier file of this number, from a copy of the store, and run the last `erase` again."
"""The advice for a file that an erasure made. An earlier file of the same unit serves as well."""


def json_bytes(record: Any) -> bytes:
    """Encode a record as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"


def publish_json(folder: Folder, name: str, record: Any) -> None:
    """Publish a record as indented JSON."""
    with folder.publish(name) as file:
        file.write(json_bytes(record))


def hashed_name(name: str, blake3: str) -> str:
    """The name of a table that contains its hash, so that two versions can exist side by side."""
    return f"{name.removesuffix('.parquet')}-{blake3[:16]}.parquet"


def table_name(folder: Folder, name: str, blake3: str) -> str:
    """The name of a table of a frozen run.

    The name contains the hash in an object store, which has no lock, and on a disk after the run was frozen again.
    """
    hashed = hashed_name(name, blake3)
    return hashed if folder.is_remote or folder.exists(hashed) else name


def part_name(unit: int, content: str = "") -> str:
    """The name of a unit's part. A part that an erasure changed has the start of its hash in its name."""
    return f"{PARTS}/{unit:08d}{content and '-'}{content[:16]}.arrow"


def kept_name(unit: int, content: str = "") -> str:
    """The name of the file with the kept columns of a unit, also after an erasure changed them."""
    return f"{KEPT}/{unit:08d}{content and '-'}{content[:16]}.parquet"


def committed_units(folder: Folder, units: int) -> npt.NDArray[np.bool_]:
    """Which units have a part. Lists the parts once."""
    return numbered_files(folder, PARTS, "arrow", units)


def part_sizes(folder: Folder, units: int, part_file: Callable[[int], str] = part_name) -> npt.NDArray[np.int64]:
    """The size of each unit's part, or -1 if it is missing. Lists the parts once."""
    sizes = np.full(units, -1, np.int64)
    for files in folder.numbered_sizes(PARTS, units):
        found = ((_PART.fullmatch(name), name, size) for name, size in files)
        matches = [
            (int(match[1]), size)
            for match, name, size in found
            if match is not None and part_file(int(match[1])) == f"{PARTS}/{name}"
        ]
        numbers, lengths = np.array(matches, np.int64).reshape(-1, 2).T
        sizes[numbers[numbers < units]] = lengths[numbers < units]
    return sizes


def numbered_parts(folder: Folder) -> list[int]:
    """The unit numbers of all existing parts, including those that are not in the plan."""
    return sorted(int(match[1]) for name in folder.names(PARTS) if (match := _PART.fullmatch(name)))


def numbered_files(folder: Folder, directory: str, ending: str, count: int) -> npt.NDArray[np.bool_]:
    """Which of the files 0 to `count` - 1 exist in a directory of numbered files. Lists the directory once."""
    pattern = re.compile(rf"([0-9]{{8,18}})(?:-[0-9a-f]{{16}})?\.{ending}")
    exists = np.zeros(count, np.bool_)
    for names in numbered_names(folder, directory, count):
        numbers = np.array([int(match[1]) for name in names if (match := pattern.fullmatch(name))], np.int64)
        exists[numbers[numbers < count]] = True
    return exists


def numbered_names(folder: Folder, directory: str, count: int) -> Iterator[list[str]]:
    """The names in a directory of numbered files, in batches. A disk is not asked for the size of each file."""
    if not folder.is_remote:
        yield folder.names(directory)
        return
    for files in folder.numbered_sizes(directory, count):
        yield [name for name, _ in files]


def remove_manifest(folder: Folder) -> None:
    """Remove the manifest durably, before a part is replaced. The store is incomplete afterwards."""
    folder.discard(MANIFEST)
    folder.sync_directory(".")


def remove_temporaries(folder: Folder) -> None:
    """Remove the temporary files of killed writers. The caller holds the lock, so no other process writes."""
    for directory in (".", *_DIRECTORIES):
        folder.remove_temporaries(directory)


def remove_stale_temporaries(folder: Folder) -> None:
    """Remove the temporary files of killed writers, unless another process holds the lock."""
    with contextlib.suppress(UsageError), folder.locks.exclusive(LOCK):
        remove_temporaries(folder)


class _Format(msgspec.Struct):
    """The one field of `run.json` and `export.json` that every version has."""

    format: int


def refuse_other_format(folder: Folder, data: bytes, readable: int, advice: str) -> None:
    """Refuse a store or an export of another format, before anything in it is read or written."""
    written = decode(data, _Format).format
    if written > readable:
        raise StoreError(
            f"{folder.root} has format {written}: a newer tokenmill wrote it, and this one reads {readable}"
        )
    if written < readable:
        raise StoreError(f"{folder.root} has format {written}, and this tokenmill reads {readable}", advice)


def damaged(folder: Folder, name: str, reason: str) -> CorruptStore:
    """The error for a damaged file, with the command that repairs it."""
    return CorruptStore(f"{folder.path(name)} is damaged", f"reason       {reason}", *advice(name))


def lost(folder: Folder, name: str) -> CorruptStore:
    """The error for a missing file, with the command that repairs it."""
    return CorruptStore(f"{folder.path(name)} is missing", *advice(name))


@contextlib.contextmanager
def errors_of(folder: Folder, name: str, *, may_be_absent: bool = False) -> Iterator[None]:
    """Raise the error of a file for what is malformed in the block, or for a file that is not there."""
    try:
        yield
    except MalformedDataError as damage:
        raise damaged(folder, name, str(damage)) from damage
    except StoreError:
        if may_be_absent or folder.exists(name):
            raise
        raise lost(folder, name) from None


def lost_export(folder: Folder) -> CorruptStore:
    """The error for an export whose own record is missing."""
    return CorruptStore(f"{folder.path(EXPORT)} is missing", restart_advice(folder))


def restart_advice(folder: Folder) -> str:
    """What to do about an export that cannot be continued."""
    return f"Remove the directory {folder.root} and export again."


def advice(name: str) -> list[str]:
    """What to do about a damaged or missing file."""
    if _CHANGED.fullmatch(name) or name.startswith(f"{CHANGES}/"):
        return [RESTORE]
    return [advice for prefix, advice in _ADVICE.items() if name.startswith(prefix)]
