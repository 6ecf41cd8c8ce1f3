"""Erase documents in an export of a store: plan the shards, replace them, then update the manifest of the export."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore, IncompleteStore, SourceError, StorageError, StoreError
from tokenmill.executors.fan_out import FanOut
from tokenmill.exports import job as names
from tokenmill.exports import records, shards
from tokenmill.exports.erase_shard import ErasedDocuments, EraseShards, PlanShards, ShardEraser, ShardErasure
from tokenmill.exports.formats import find_format
from tokenmill.exports.job import FrozenExport, read_frozen
from tokenmill.exports.order import SplitAndShuffle
from tokenmill.exports.write_shard import make_shard, split_folder
from tokenmill.storage import Folder, folder_at, resolved
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import layout
from tokenmill.store.erasures import erased_documents, erasure_file
from tokenmill.store.job import Run, StoreChange
from tokenmill.store.layout import MAX_JSON_BYTES


class ExportErasure(msgspec.Struct, frozen=True):
    """What an erasure did in an export. `problem` says why the export could not be reached; then nothing was done.

    `removed` is set if the export was not complete: what it had written was removed, and it begins again.
    """

    directory: str
    shards: tuple[ShardErasure, ...] = ()
    removed: bool = False
    problem: str = ""


class _ErasingExport(msgspec.Struct, frozen=True):
    """The mark of an export while its shards are replaced."""

    request: str
    shards: tuple[ShardErasure, ...]


@dataclass(frozen=True, slots=True)
class StoreErasure:
    """A change of a store that erased documents: the store after it, and the number of the change from 1."""

    folder: Folder
    run: Run
    change: StoreChange

    @property
    def versions(self) -> list[str]:
        """The digests of the store's parts before this change."""
        history = self.run.history
        return [change.before for change in history[: history.index(self.change) + 1]]


def erase_in_export(directory: str, number: int, erasure: StoreErasure, fan_out: FanOut) -> ExportErasure:
    """Erase documents in an export, or say why that is not possible. May be repeated.

    The result is kept with the files of the erasure, so an export is done once. `number` names that file.
    """
    name = erasure_file(erasure.change.request, f"export-{number:04d}.json")
    if erasure.folder.exists(name):
        try:
            return decode(erasure.folder.read(name, MAX_JSON_BYTES), ExportErasure)
        except MalformedDataError as damage:
            raise layout.damaged(erasure.folder, name, str(damage)) from damage
    try:
        result = _erase(directory, erasure, fan_out)
    except (CorruptStore, IncompleteStore):
        raise
    except (StoreError, StorageError, SourceError) as error:
        return ExportErasure(directory, problem=error.headline)
    layout.publish_json(erasure.folder, name, result)
    if not result.problem:
        folder_at(directory).discard(names.ERASING)
    return result


def _erase(directory: str, erasure: StoreErasure, fan_out: FanOut) -> ExportErasure:
    folder = folder_at(directory)
    frozen = read_frozen(folder, unfinished_too=True)
    if frozen is None:
        return ExportErasure(directory, problem="there is no export in it any more")
    first_source = store_position(folder, frozen, erasure.folder, erasure.versions)
    if first_source is None:
        return ExportErasure(directory, problem="it is not an export of this store")
    with folder.lock(names.LOCK):
        splits = {split_folder(frozen.job, split) or "." for split in ("train", "val")}
        for name in {".", names.STATE, names.RECORDS, *splits}:
            folder.remove_temporaries(name)
        if not folder.exists(names.MANIFEST):
            _remove(folder, frozen)
            return ExportErasure(directory, removed=True)
        erased = ErasedDocuments(erasure.folder.root, erasure.change, first_source[0], erasure.run.erased_token)
        eraser = ShardEraser(folder.root, frozen.job, erased, tuple(frozen.directories(folder)))
        plan = read_export_plan(folder, frozen)
        planned = _plan_shards(folder, frozen, plan, eraser, erasure, first_source[1], fan_out)
        _erase_shards(folder, frozen, plan, eraser, planned, fan_out)
        _publish_manifest(folder, frozen, planned)
        return ExportErasure(directory, planned)


def store_position(
    export: Folder, frozen: FrozenExport, store: Folder, versions: list[str]
) -> tuple[int, int, int] | None:
    """The first source and the first part of a store in an export, and which of its versions that has.

    None if the export does not have one of these versions of the store.
    """
    if isinstance(frozen.store, str):
        return (0, 0, versions.index(frozen.job.store)) if frozen.job.store in versions else None
    source = part = 0
    for member, directory in zip(frozen.store, frozen.directories(export), strict=True):
        if member.digest in versions and resolved(directory) == resolved(store.root):
            return source, part, versions.index(member.digest)
        source, part = source + member.sources, part + member.parts
    return None


def read_export_plan(folder: Folder, frozen: FrozenExport) -> pa.Table:
    """The plan of an export, without the check that needs the counts of its stores."""
    return shards.read_plan(folder, frozen.work_digest(), names.MAX_TOKENS, names.MAX_TOKENS)


def _plan_shards(  # noqa: PLR0913, PLR0917 - an export, what is erased in it, and what does it
    folder: Folder,
    frozen: FrozenExport,
    plan: pa.Table,
    eraser: ShardEraser,
    erasure: StoreErasure,
    first_part: int,
    fan_out: FanOut,
) -> tuple[ShardErasure, ...]:
    """The shards that change. The plan is kept in the export, and readers refuse it from then on."""
    mark = _read_mark(folder)
    if mark is not None and mark.request == erasure.change.request:
        return mark.shards
    blocks = blocks_of(frozen, eraser, first_part)
    first, last = (plan[name].to_numpy() for name in ("first_block", "last_block"))
    near = np.flatnonzero(np.searchsorted(blocks, first) < np.searchsorted(blocks, last, side="right"))
    tokens = plan["stop"].to_numpy() - plan["start"].to_numpy()
    fan_out.begin(f"find in {frozen.job.format}", int(tokens[near].sum()))
    planned = []
    tasks = shards.tasks(plan, near)
    for done in fan_out.run(PlanShards(eraser), tasks, lambda task: f"shard {task.shard}"):
        planned += [done.value] if done.value is not None else []
        fan_out.advance(done.item.tokens)
    result = tuple(sorted(planned, key=lambda item: item.shard))
    layout.publish_json(folder, names.ERASING, _ErasingExport(erasure.change.request, result))
    return result


def _read_mark(folder: Folder) -> _ErasingExport | None:
    if not folder.exists(names.ERASING):
        return None
    try:
        return decode(folder.read(names.ERASING, MAX_JSON_BYTES), _ErasingExport)
    except MalformedDataError as damage:
        raise CorruptStore(f"{folder.path(names.ERASING)} is damaged", f"reason       {damage}") from damage


def blocks_of(frozen: FrozenExport, eraser: ShardEraser, first_part: int) -> npt.NDArray[np.int64]:
    """The blocks of the export that hold erased documents, in order: parts, or ranges of keys of a shuffle."""
    erased = eraser.erased
    if frozen.job.shuffle is None:
        return np.unique(erased_documents(erased.directory, erased.change)["unit"].to_numpy() + first_part)
    keys = SplitAndShuffle.of(frozen.job, np.empty(0, np.uint64)).keys(*erased.origins())
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


def _remove(folder: Folder, frozen: FrozenExport) -> None:
    """Remove all that an incomplete export has written: its files, sorted runs, records and plan."""
    if folder.exists(names.PLAN):
        plan = read_export_plan(folder, frozen)
        format_ = find_format(frozen.job.format)
        paths = pa.array([], pa.string())
        for task in shards.tasks(plan, np.arange(len(plan))):
            for name in format_.files(make_shard(frozen.job, task, paths)):
                folder.discard(name)
                folder.discard(folder.region_file(name))
    folder.remove(names.RUNS)
    folder.remove(names.RECORDS)
    folder.discard(names.PLAN)
    folder.discard(names.EXPORT)
