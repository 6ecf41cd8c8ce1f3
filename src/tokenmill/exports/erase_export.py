"""Erase documents in an export of a store: plan the shards, replace them, then update the manifest of the export."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore, RunFailed, SourceError, StorageError, StoreError
from tokenmill.executors.fan_out import FanOut
from tokenmill.exports import job as names
from tokenmill.exports import records, shards
from tokenmill.exports.erase_done import ExportErasure, done_file, listed_files, read_done
from tokenmill.exports.erase_shard import (
    ErasedDocuments,
    EraseShards,
    PlanShards,
    ShardEraser,
    ShardErasure,
    source_paths,
)
from tokenmill.exports.formats import find_format
from tokenmill.exports.job import FrozenExport, read_frozen
from tokenmill.exports.order import SplitAndShuffle
from tokenmill.exports.write_shard import make_shard, split_folder
from tokenmill.storage import Folder, folder_at, publish_new, read_existing, resolved
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import layout
from tokenmill.store.erasures import erased_documents
from tokenmill.store.job import Run, StoreChange
from tokenmill.store.layout import MAX_JSON_BYTES
from tokenmill.store.manifest import manifest_run
from tokenmill.store.run import read_run

MAX_PLANS = 10
"""How often the shards of an export are planned while another process changes them."""


class _ErasingExport(msgspec.Struct, frozen=True):
    """The mark of an export while its shards are replaced, by a change of one of its stores."""

    change: StoreChange
    shards: tuple[ShardErasure, ...]


@dataclass(frozen=True, slots=True)
class StoreErasure:
    """A change of a store that erased documents, and the store now, with the digest of its parts."""

    folder: Folder
    run: Run
    change: StoreChange
    digest: str

    @property
    def number(self) -> int:
        """The number of the change, from 1."""
        return self.run.history.index(self.change) + 1

    @property
    def versions(self) -> list[str]:
        """The digests of the store's parts before each change, and now."""
        return [*(change.before for change in self.run.history), self.digest]

    def file(self, directory: str) -> str:
        """The file of the erasure that keeps what was done in an export."""
        return done_file(self.folder, self.change.request, directory)


class StorePositions(NamedTuple):
    """Where a store is in an export: the first source and the first part of each of its copies, and its version.

    An export by recipe has several copies of a store that is read more than once. The version is the number of changes
    of the store before the export.
    """

    sources: tuple[int, ...]
    parts: tuple[int, ...]
    version: int


def erase_in_export(directory: str, erasure: StoreErasure, fan_out: FanOut) -> ExportErasure:
    """Erase documents in an export, or say why that is not possible. May be repeated.

    The result is kept with the files of the erasure, so an export is done once. One that was not reached is tried
    again.
    """
    name = erasure.file(directory)
    try:
        done = read_done(erasure.folder, name)
        result = _erase(directory, erasure, fan_out) if done is None or done.removed else done
        if done is not None and not result.shards:  # a kill may have left export.json of a removed export
            result = done
        if result.problem:
            return result
        if result != done:
            layout.publish_json(erasure.folder, name, result)
        export = folder_at(directory)
        mark = _read_mark(export)
        if mark is not None and mark.change == erasure.change:
            export.discard(names.ERASING)
    except (StoreError, StorageError, SourceError, RunFailed) as error:
        reason = error.details[0].strip() if isinstance(error, RunFailed) and error.details else error.headline
        return ExportErasure(directory, problem=reason)
    return result


def _erase(directory: str, erasure: StoreErasure, fan_out: FanOut) -> ExportErasure:
    folder = folder_at(directory)
    frozen = read_frozen(folder, unfinished_too=True)
    if frozen is None:
        return ExportErasure(directory, problem="there is no export in it any more")
    positions = store_positions(folder, frozen, erasure.folder, erasure.versions)
    if positions is None:
        return ExportErasure(directory, problem="it is not an export of this store")
    _refuse_export_of_original(folder, frozen, erasure)
    if positions.version >= erasure.number:  # made after the erasure, without the documents
        return ExportErasure(directory)
    stores = exported_stores(folder, frozen, erasure.folder)
    source_paths(stores)  # raises if the sources of a store cannot be read
    if folder.is_remote and not folder.exists(names.MANIFEST):  # without a lock, it may be being written now
        raise StoreError("it is not complete: finish it or remove it, then erase again")
    with folder.locks.exclusive(names.LOCK):
        splits = {split_folder(frozen.job, split) or "." for split in ("train", "val")}
        for name in {".", names.STATE, names.RECORDS, *splits}:
            folder.remove_temporaries(name)
        folder.remove(names.RUNS)
        if not folder.exists(names.MANIFEST):
            if not folder.exists(names.PLAN) and any({*folder.names(name)} - {names.STATE} for name in splits):
                raise StoreError(f"{folder.root} has files of an export whose plan is lost: remove the directory")
            _remove(folder, frozen)
            removed = ExportErasure(directory, removed=True)
            layout.publish_json(erasure.folder, erasure.file(directory), removed)
            folder.discard(names.EXPORT)  # without this file nothing shows that there was an export
            return removed
        erased = ErasedDocuments(erasure.folder.root, erasure.change, positions.sources, erasure.run.erased_token)
        eraser = ShardEraser(folder.root, frozen.job, erased, stores)
        plan = shards.read_export_plan(folder, frozen)
        for name in _files(frozen, plan) if frozen.job.shard_tokens is None else ():
            folder.regions.discard(name)
        planned = _plan_shards(folder, frozen, plan, eraser, erasure, positions.parts, fan_out)
        _erase_shards(folder, frozen, plan, eraser, planned, fan_out)
        _publish_manifest(folder, frozen, planned)
        return ExportErasure(directory, planned)


def _refuse_export_of_original(export: Folder, frozen: FrozenExport, erasure: StoreErasure) -> None:
    """Raise if the export names another directory, and the store there has the same run: this store is a copy."""
    named = frozen.directories(export) if isinstance(frozen.store, str) else []
    if not named or resolved(named[0]) == resolved(erasure.folder.root):
        return
    try:
        run = read_run(folder_at(named[0]))
    except (StoreError, StorageError):
        return
    if run is not None and manifest_run(run) == manifest_run(erasure.run):
        raise StoreError(f"it is an export of {named[0]}, of which this store is a copy")


def store_positions(export: Folder, frozen: FrozenExport, store: Folder, versions: list[str]) -> StorePositions | None:
    """Find a store in an export; None if the export does not have one of these versions of the store."""
    if isinstance(frozen.store, str):
        known = frozen.job.store in versions
        return StorePositions((0,), (0,), versions.index(frozen.job.store)) if known else None
    source = part = 0
    found = []
    for member, directory in zip(frozen.store, frozen.directories(export), strict=True):
        if member.digest in versions and resolved(directory) == resolved(store.root):
            found.append((source, part, versions.index(member.digest)))
        source, part = source + member.sources, part + member.parts
    if not found:
        return None
    sources, parts, numbers = zip(*found, strict=True)
    return StorePositions(sources, parts, min(numbers))


def exported_stores(export: Folder, frozen: FrozenExport, store: Folder) -> tuple[str, ...]:
    """The directories of the stores of an export, of which `store` is one. It may have moved since the export."""
    return (store.root,) if isinstance(frozen.store, str) else tuple(frozen.directories(export))


def _plan_shards(  # noqa: PLR0913, PLR0917 - an export, what is erased in it, and what does it
    folder: Folder,
    frozen: FrozenExport,
    plan: pa.Table,
    eraser: ShardEraser,
    erasure: StoreErasure,
    first_parts: tuple[int, ...],
    fan_out: FanOut,
) -> tuple[ShardErasure, ...]:
    """The shards that change. The plan is kept in the export, and readers refuse it from then on.

    In an object store another store of the export may erase at the same time: the shards are planned again then.
    """
    for _ in range(MAX_PLANS):
        mark = _read_mark(folder)
        if mark is None:
            planned = _changed_shards(frozen, plan, eraser, shards_near(frozen, plan, eraser, first_parts), fan_out)
            publish_new(folder, names.ERASING, layout.json_bytes(_ErasingExport(erasure.change, planned)))
        elif mark.change != erasure.change:
            of = "" if mark.change in erasure.run.history else " of another store"
            raise StoreError(f"the erasure {mark.change.request}{of} is not finished in {folder.root}")
        elif _is_current(folder, frozen, mark.shards):
            return mark.shards
        else:
            folder.discard(names.ERASING)
    raise StoreError(f"another process changes {folder.root}")


def _changed_shards(
    frozen: FrozenExport, plan: pa.Table, eraser: ShardEraser, near: npt.NDArray[np.int64], fan_out: FanOut
) -> tuple[ShardErasure, ...]:
    """The files of the shards that change, before and after."""
    tokens = plan["stop"].to_numpy() - plan["start"].to_numpy()
    fan_out.begin(f"find in {frozen.job.format}", int(tokens[near].sum()))
    planned = []
    for done in fan_out.run(PlanShards(eraser), shards.tasks(plan, near), lambda task: f"shard {task.shard}"):
        planned += [done.value] if done.value is not None else []
        fan_out.advance(done.item.tokens)
    return tuple(sorted(planned, key=lambda item: item.shard))


def _is_current(folder: Folder, frozen: FrozenExport, planned: tuple[ShardErasure, ...]) -> bool:
    """Whether the manifest lists the files of the shards as they were planned, before or after the erasure."""
    listed = listed_files(folder, frozen)
    states = ((listed.get(item.shard), msgspec.to_builtins(item)) for item in planned)
    return all(files in (list(state["before"]), list(state["after"])) for files, state in states)


def _read_mark(folder: Folder) -> _ErasingExport | None:
    data = read_existing(folder, names.ERASING, MAX_JSON_BYTES)
    try:
        return None if data is None else decode(data, _ErasingExport)
    except MalformedDataError as damage:
        raise CorruptStore(f"{folder.path(names.ERASING)} is damaged", f"reason       {damage}") from damage


def shards_near(
    frozen: FrozenExport, plan: pa.Table, eraser: ShardEraser, first_parts: tuple[int, ...]
) -> npt.NDArray[np.int64]:
    """The shards with a block that holds erased documents."""
    blocks = _blocks_of(frozen, eraser, first_parts)
    first, last = (plan[name].to_numpy() for name in ("first_block", "last_block"))
    near: npt.NDArray[np.int64] = np.flatnonzero(
        np.searchsorted(blocks, first) < np.searchsorted(blocks, last, side="right")
    )
    return near


def _blocks_of(frozen: FrozenExport, eraser: ShardEraser, first_parts: tuple[int, ...]) -> npt.NDArray[np.int64]:
    """The blocks of the export that hold erased documents, in order: parts, or ranges of keys of a shuffle."""
    erased = eraser.erased
    if frozen.job.shuffle is None:
        units = erased_documents(erased.directory, erased.change)["unit"].to_numpy()
        return np.unique(np.add.outer(np.array(first_parts), units))
    keys = SplitAndShuffle.of(frozen.job, np.empty(0, np.uint64), []).keys(*erased.origins())
    return np.unique((keys >> np.uint64(65 - frozen.bins.bit_length())).astype(np.int64))


def _erase_shards(  # noqa: PLR0913, PLR0917 - an export, its shards, and what does it
    folder: Folder,
    frozen: FrozenExport,
    plan: pa.Table,
    eraser: ShardEraser,
    planned: tuple[ShardErasure, ...],
    fan_out: FanOut,
) -> None:
    """Replace the shards. In an object store, the regions of one file are replaced one after the other."""
    tasks = dict(
        zip((item.shard for item in planned), shards.tasks(plan, np.array([i.shard for i in planned])), strict=True)
    )
    is_joint = folder.is_remote and frozen.job.shard_tokens is None
    pairs = sorted(
        ((tasks[item.shard], item) for item in planned), key=lambda pair: (pair[1].before[0].name, pair[0].shard)
    )
    keyed = itertools.groupby(pairs, lambda pair: pair[1].before[0].name if is_joint else pair[0].shard)
    items = [tuple(group) for _, group in keyed]
    fan_out.begin(f"erase in {frozen.job.format}", sum(task.tokens for task, _ in pairs))
    for done in fan_out.run(EraseShards(eraser), items, lambda item: f"shard {item[0][0].shard}"):
        fan_out.advance(sum(task.tokens for task, _ in done.item))


def _publish_manifest(folder: Folder, frozen: FrozenExport, planned: tuple[ShardErasure, ...]) -> None:
    """Publish the manifest with the checksums of the new files."""
    digest = frozen.job.digest()
    manifest = records.read_manifest(folder, digest)
    after = {item.shard: msgspec.to_builtins(item.after) for item in planned}
    rows = [row | {"files": after.get(row["shard"], row["files"])} for row in manifest.to_pylist()]
    table = pa.Table.from_pylist(rows, records.MANIFEST_SCHEMA)
    metadata = msgspec.json.encode(records.read_others(manifest))
    records.publish_manifest(folder, table.replace_schema_metadata({records.OTHERS_KEY: metadata}), digest)


def _files(frozen: FrozenExport, plan: pa.Table) -> list[str]:
    """The names of all files of an export."""
    format_, paths = find_format(frozen.job.format), pa.array([], pa.string())
    tasks = shards.tasks(plan, np.arange(len(plan)))
    return list(dict.fromkeys(name for task in tasks for name in format_.files(make_shard(frozen.job, task, paths))))


def largest_shard(directory: str) -> int:
    """The bytes of the tokens in the largest shard of an export; 0 if it cannot be read."""
    try:
        folder = folder_at(directory)
        frozen = read_frozen(folder, unfinished_too=True)
        if frozen is None or not folder.exists(names.PLAN):
            return 0
        plan = shards.read_export_plan(folder, frozen)
    except (StoreError, StorageError, SourceError):
        return 0
    tokens = plan["stop"].to_numpy() - plan["start"].to_numpy()
    return int(tokens.max(initial=0)) * np.dtype(frozen.job.dtype).itemsize


def _remove(folder: Folder, frozen: FrozenExport) -> None:
    """Remove what an incomplete export has written: its files, records and plan, but not its export.json."""
    if folder.exists(names.PLAN):
        for name in _files(frozen, shards.read_export_plan(folder, frozen)):
            folder.discard(name)
            folder.regions.discard(name)
    folder.remove(names.RECORDS)
    folder.discard(names.PLAN)
