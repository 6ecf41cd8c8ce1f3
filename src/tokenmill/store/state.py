"""What a directory is, judged in one place, and which operations go on with it. Every command enters a store here.

`look` reads `run.json`, the last claim in `changes/` and the manifest, and gives one of the states.
`ADMITTED` says which operation goes on in which state; in any other state `enter` raises the error of that state.

A state may be that the fast engine failed an audit. While `engine-mismatch.json`, or its copy in `rechecked/`, exists,
the store is complete only if each part has a mark in `rechecked/`. A mark holds the checksum of its part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore, IncompleteStore, StoreError
from tokenmill.storage import Folder, publish_new
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import heartbeats, layout, tables
from tokenmill.store.chain import BASE, Head, read_head, remaking_error, unfinished, with_base
from tokenmill.store.event_log import checksum_prefix
from tokenmill.store.heartbeats import is_failure, last_end, next_step
from tokenmill.store.job import Run, no_store, read_run
from tokenmill.store.layout import MAX_JSON_BYTES, MISMATCH, RECHECKED, json_bytes, numbered_files
from tokenmill.store.tables import ForeignManifest, read_manifest

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


class State(StrEnum):
    """What a directory is. The first state that applies is its state."""

    ABSENT = "absent"  # there is no `run.json`
    EXPORT = "export"  # there is no `run.json`, but the record or the plan of an export
    DAMAGED = "damaged"  # `run.json` is damaged or of another format, or a record in `changes/` is lost or damaged
    RESTORED = "restored"  # documents were erased, and `run.json` or the manifest is lost or damaged
    CHANGING = "changing"  # an erasure is claimed and not done
    UNPLANNED = "unplanned"  # the plan or the list of sources is lost or damaged
    PARTIAL = "partial"  # there is no manifest
    SUSPECT = "suspect"  # the fast engine failed an audit, and not every part is confirmed
    UNLISTED = "unlisted"  # the manifest is damaged, or belongs to another run
    COMPLETE = "complete"  # none of these


class Operation(StrEnum):
    """What a command does with a store. To read is what exports, loaders, `verify` and all that look into it do."""

    PREPARE = "prepare"
    FINISH = "finish"
    STATUS = "status"
    LIKE = "like"
    ERASE = "erase"
    READ = "read"


_COUNTED = frozenset({State.PARTIAL, State.SUSPECT, State.COMPLETE})

ADMITTED: dict[Operation, frozenset[State]] = {
    Operation.PREPARE: _COUNTED | {State.ABSENT, State.EXPORT, State.UNPLANNED, State.UNLISTED},
    Operation.FINISH: frozenset({State.PARTIAL, State.COMPLETE}),
    Operation.STATUS: _COUNTED,
    Operation.LIKE: _COUNTED | {State.CHANGING, State.UNLISTED},
    Operation.ERASE: frozenset({State.CHANGING, State.COMPLETE}),
    Operation.READ: frozenset({State.COMPLETE}),
}
"""In which states an operation goes on."""


@dataclass(frozen=True, slots=True)
class StoreState:
    """A directory at one moment.

    `base` is the manifest as `prepare` wrote it; without rows if it was not read. `error` was raised by what is lost or
    damaged.
    """

    folder: Folder
    state: State
    run_or_none: Run | None = None
    head: Head = BASE
    has_manifest: bool = False
    base: pa.Table = field(default_factory=tables.MANIFEST_SCHEMA.empty_table, repr=False)
    error: StoreError | None = None

    @property
    def run(self) -> Run:
        """The run. Raises StoreError if the directory has none."""
        if self.run_or_none is None:
            raise no_store(self.folder)
        return self.run_or_none

    @property
    def manifest(self) -> pa.Table:
        """The manifest after the last change."""
        return self.head.manifest(self.base)

    @property
    def has_foreign_manifest(self) -> bool:
        """Whether the manifest belongs to another run."""
        return isinstance(self.error, ForeignManifest)

    def require(self, operation: Operation) -> None:
        """Raise the error of this state unless the operation goes on in it."""
        if self.state not in ADMITTED[operation]:
            raise self.error or _ERRORS[self.state](self)


def enter(folder: Folder, operation: Operation, skipped: Collection[str] = ()) -> StoreState:
    """The state of a directory in which the operation goes on. Raises the error of any other state."""
    found = look(folder, skipped)
    found.require(operation)
    return found


def look(folder: Folder, skipped: Collection[str] = ()) -> StoreState:  # noqa: PLR0911 - one for each state
    """What a directory is. `skipped` are columns of the manifest that are not read."""
    run, head, has_manifest = None, BASE, False

    def found(state: State, error: StoreError | None = None) -> StoreState:
        return StoreState(folder, state, run, head, has_manifest, error=error)

    try:
        head = read_head(folder)
        run = read_run(folder)
    except StoreError as error:
        is_restored = head.number > 0 and isinstance(error, CorruptStore)
        return found(State.RESTORED) if is_restored else found(State.DAMAGED, error)
    if run is None and not head.number:
        names = [f"{layout.EXPORT_STATE}/{name}" for name in folder.names(layout.EXPORT_STATE)]
        is_export = layout.EXPORT in names or layout.EXPORT_PLAN in names
        return found(State.EXPORT if is_export else State.ABSENT)
    has_manifest = folder.exists(layout.MANIFEST)
    if run is None or (head.number and not has_manifest):
        return found(State.RESTORED)
    if not head.is_done:
        return found(State.CHANGING)
    try:
        tables.check_tables(folder, run)
    except CorruptStore as error:
        return found(State.UNPLANNED, error)
    if not has_manifest:
        return found(State.PARTIAL)
    try:
        base = read_manifest(folder, run, skipped)
    except CorruptStore as error:
        return found(State.RESTORED) if head.number else found(State.UNLISTED, error)
    try:
        head = with_base(folder, head, base)
    except CorruptStore as error:
        return found(State.DAMAGED, error)
    state = State.SUSPECT if is_suspect(folder, run) else State.COMPLETE
    return replace(found(state), base=base)


def _is_export(found: StoreState) -> StoreError:
    folder = found.folder
    if not folder.exists(layout.EXPORT):
        return layout.lost_export(folder)
    return StoreError(
        f"{folder.root} is an export, not a store",
        "If it is not complete, run the same `tokenmill export` again.",
    )


def _partial(found: StoreState) -> StoreError:
    folder, run = found.folder, found.run
    return IncompleteStore(
        f"the store {folder.root} is not complete",
        f"units        {int(layout.committed_units(folder, run.units).sum()):,} of {run.units:,} are committed",
        *_completion_advice(folder),
    )


def _completion_advice(folder: Folder) -> tuple[str, ...]:
    holder = folder.locks.holder(layout.LOCK)
    if holder is not None:
        wait = "Wait for it to end; `tokenmill status --watch` shows its progress."
        return (f"Process {holder} is still writing it. {wait}",)
    end = last_end(folder, list(heartbeats.read(folder).values()))
    reason = (f"stopped      {end.outcome}: {end.headline}",) if end is not None and is_failure(end) else ()
    return (*reason, *next_step(end))


def _suspect(found: StoreState) -> StoreError:
    mismatch = read_mismatch(found.folder)
    engine, message = ("the fast engine", "") if mismatch is None else (mismatch.engine, mismatch.message)
    return IncompleteStore(
        f"{engine} failed an audit in {found.folder.root}",
        f"found        {message}",
        "Run the same `tokenmill prepare` again: it compares every part with the reference engine.",
    )


_ERRORS: dict[State, Callable[[StoreState], StoreError]] = {
    State.ABSENT: lambda found: no_store(found.folder),
    State.EXPORT: _is_export,
    State.RESTORED: lambda found: remaking_error(found.folder),
    State.CHANGING: lambda found: unfinished(found.folder, found.head),
    State.PARTIAL: _partial,
    State.SUSPECT: _suspect,
}
"""The error of each state in which nothing that was read raised one."""
