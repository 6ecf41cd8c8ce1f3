"""The record of an audit that the fast engine failed, and the marks of parts that the reference engine confirmed.

While `engine-mismatch.json`, or its copy in `rechecked/`, exists, the store is complete only if each part has a mark in
`rechecked/`. A mark holds the checksum of its part.
"""

from __future__ import annotations

from contextlib import suppress

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.errors import StoreError
from tokenmill.storage import Folder, publish_new
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store.event_log import checksum_prefix
from tokenmill.store.job import Run
from tokenmill.store.layout import MAX_JSON_BYTES, MISMATCH, RECHECKED, json_bytes, numbered_files

_COPY = f"{RECHECKED}/{MISMATCH}"


class MismatchRecord(msgspec.Struct, frozen=True):
    """An audit that the fast engine failed in this store. `message` names the document."""

    engine: str
    message: str


def publish_mismatch(folder: Folder, mismatch: MismatchRecord) -> None:
    """Record that the fast engine failed an audit, twice: one lost file loses nothing. An earlier record is kept."""
    folder.create(RECHECKED)
    for name in (MISMATCH, _COPY):
        publish_new(folder, name, json_bytes(mismatch))


def read_mismatch(folder: Folder) -> MismatchRecord | None:
    """Read the record of the failed audit; None if no audit failed."""
    name = next((name for name in (MISMATCH, _COPY) if folder.exists(name)), None)
    if name is None:
        return None
    try:
        return decode(folder.read(name, MAX_JSON_BYTES), MismatchRecord)
    except MalformedDataError:
        return MismatchRecord("the fast engine", f"the record {name} is damaged")


def is_suspect(folder: Folder, run: Run) -> bool:
    """Whether the fast engine failed an audit and the reference engine has not confirmed every part."""
    return read_mismatch(folder) is not None and not bool(rechecked_units(folder, run.units).all())


def mark_rechecked(folder: Folder, unit: int, blake3: str) -> None:
    """Mark a unit whose part, with this checksum, the reference engine made or confirmed."""
    folder.create(RECHECKED)
    publish_new(folder, rechecked_name(unit), blake3.encode())


def rechecked_checksums(folder: Folder, units: npt.NDArray[np.int64], count: int) -> npt.NDArray[np.uint64]:
    """For each of `count` units, the checksum prefix in its mark; 0 for a unit without one, or not in `units`."""
    prefixes = np.zeros(count, np.uint64)
    for unit in units.tolist():
        with suppress(StoreError, ValueError):
            prefixes[unit] = checksum_prefix(folder.read(rechecked_name(unit), MAX_JSON_BYTES).decode())
    return prefixes


def rechecked_name(unit: int) -> str:
    """The mark of a unit whose part the reference engine made or confirmed."""
    return f"{RECHECKED}/{unit:08d}.ok"


def rechecked_units(folder: Folder, units: int) -> npt.NDArray[np.bool_]:
    """Which units have a part that the reference engine made or confirmed."""
    return numbered_files(folder, RECHECKED, "ok", units)
