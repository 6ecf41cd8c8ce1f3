"""Export a store: freeze the job, order the documents, write the missing shards, finish."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import msgspec
import numpy as np

from tokenmill.api.loader import only_recipe, open_recipe_reader
from tokenmill.api.parameters import output_text, store_paths
from tokenmill.errors import UsageError
from tokenmill.executors import progress
from tokenmill.executors.fan_out import LOCAL, FanOut, open_executor
from tokenmill.executors.outcomes import Pool
from tokenmill.executors.ranks import RankShare, choose_rank_share
from tokenmill.exports import PRELOAD, shards, sorted_runs
from tokenmill.exports import job as names
from tokenmill.exports.exporter import Exporter
from tokenmill.exports.job import ExportJob, FrozenExport, freeze, left_out_changes, read_frozen, stores_in
from tokenmill.exports.kept_columns import choose_columns
from tokenmill.exports.known_exports import record_export
from tokenmill.exports.request import ExportRequest, make_export_request, make_job
from tokenmill.exports.result import ExportResult
from tokenmill.exports.selection import SelectedStores, SourceBudget, select
from tokenmill.exports.shuffle import Shuffle, ShuffleWork, batch_bytes
from tokenmill.exports.write_shard import ExportContext, split_folder
from tokenmill.humanize import size
from tokenmill.options import ExportOptions
from tokenmill.pipeline.driving.preflight import too_small
from tokenmill.pipeline.planning.estimate import Footprint
from tokenmill.pipeline.planning.resources import Resources, plan_resources
from tokenmill.storage import Folder, folder_at, free_bytes
from tokenmill.storage.run_once import EXPORTING, run_once
from tokenmill.store.collection import Collection, open_collection
from tokenmill.store.job import read_run, require_run
from tokenmill.system.arguments import takes
from tokenmill.token_files import FORMATS
from tokenmill.training.recipe import is_recipe

# With fewer tokens per worker, starting another worker takes longer than it saves.
TOKENS_PER_WORKER = 4_000_000

# Minimum memory of an export worker. It is less than in `prepare`, because no tokenizer is loaded.
MIN_WORKER_BYTES = 300 << 20


@takes(ExportOptions)
def export(options: ExportOptions) -> ExportResult:
    """Write the tokens of a store as the files that a trainer reads.

    Call it again after an interruption: only missing shards are written. A new export raises if the disk is too small
    for it, unless `force` is set. Several processes share an export if each has its `rank`.
    """
    rank_share = choose_rank_share(options.rank, options.of, look=options.on == LOCAL)
    directories, out = store_paths(options.directory), None if options.out is None else output_text(options.out)
    selected = None
    if any(map(is_recipe, directories)):
        selected, shuffle, val = _select(directories, out, options)
        options = replace(options, shuffle=shuffle, val=val)
        directories = selected.stores.directories
    request = make_export_request(options, require_run(folder_at(directories[0])).job.tokenizer)
    with open_executor(options.on, PRELOAD, options.executor, options.reporter) as (pool, report):
        return export_stores(directories, out, request, report, pool, selected, rank_share)


def _select(paths: Sequence[str], out: str | None, options: ExportOptions) -> tuple[SelectedStores, int, str]:
    """The documents of a recipe, the seed of the shuffle, and the validation split."""
    path = only_recipe(paths, {"val": options.val})
    if out is None:
        raise UsageError("an export by recipe needs --out", "It belongs to no store: name a directory.")
    recipe, reader = open_recipe_reader(path)
    if recipe.packing != "concat":
        raise UsageError(
            "an export holds whole documents", "Remove `packing` from the recipe, or train with the loader."
        )
    cursors = reader.timeline.cursors[-1]
    budgets = [
        SourceBudget(name, tuple(recipe.source(name).store), cursors[name].used, source.where)
        for name, source in reader.merged.items()
        if cursors[name].used
    ]
    before = read_frozen(folder_at(out))
    selected = select(budgets, reader.options.val, recipe.seed, before)
    return selected, recipe.seed if options.shuffle is None else options.shuffle, reader.options.val or "none"


def _refuse_place_in_another_store(export: Folder, stores: Collection) -> None:
    """Raise if another store would take the directory for its own export."""
    parent, _, name = export.root.rpartition("/")
    if not parent or name not in FORMATS or parent in stores.directories:
        return
    other = read_run(folder_at(parent))
    if other is not None and other not in [member.run for member in stores.members]:
        raise UsageError(
            "--out is the directory for an export of another store",
            f"directory    {export.root}",
            f"store        {parent}",
            "Give a directory that is not in another store.",
        )


def export_stores(  # noqa: PLR0913, PLR0917 - stores, target, request, reporter, workers, rank
    directories: Sequence[str],
    out: str | None,
    request: ExportRequest,
    report: progress.Reporter,
    pool: Pool,
    selected: SelectedStores | None = None,
    rank_share: RankShare | None = None,
) -> ExportResult:
    """Export stores to `out`, or into the directory of the last one, with the workers of `pool`."""
    started = time.monotonic()
    stores = open_collection(directories) if selected is None else selected.stores
    dtype = stores.job.tokenizer.dtype
    folder = folder_at(out if out is not None else stores.members[-1].folder.path(request.spec.name))
    before = read_frozen(folder)
    left_out = left_out_changes(before, stores)
    columns, kept_bytes = choose_columns(stores, request.with_columns, before)
    job, notices = make_job(request, stores, left_out, columns, selected.selection if selected else None)
    manifest = stores.manifest_without_erased(left_out)
    tokens = int(manifest["tokens"].to_numpy().sum())
    resources = plan_resources(
        request.options.workers, request.options.memory, tokens // TOKENS_PER_WORKER + 1, MIN_WORKER_BYTES, pool.room
    )
    if resources.notice is not None:
        notices.append(resources.notice)
    if folder.root in stores.directories:
        default = stores.members[-1].folder.path(job.format)
        raise UsageError("--out is the store itself", f"Without --out, the files go to {default}.")
    _refuse_place_in_another_store(folder, stores)
    created = {".", names.STATE, names.RECORDS, *(split_folder(job, split) for split in ("train", "val"))}
    folder.create(names.STATE)
    with _hold_export(folder, created, rank_share, report):
        workers = resources.workers * (1 if rank_share is None else rank_share.of)
        token_bytes = np.dtype(dtype).itemsize + -(-kept_bytes // max(tokens, 1))
        frozen = _freeze_work(job, resources, workers, tokens, token_bytes)
        frozen = msgspec.structs.replace(frozen, stores=stores_in(folder, stores, left_out))
        frozen = freeze(folder, frozen, is_shared=rank_share is not None)
        notices += record_export(folder, stores)
        for name in created:
            folder.create(name)
        # A rank that comes later finds a disk on which the others have written already.
        if not folder.exists(names.PLAN) and (rank_share is None or before is None):
            written = tokens if job.selection is None else job.selection.tokens
            documents = int(manifest["documents"].to_numpy().sum()) * written // max(tokens, 1)
            needed = Footprint.of_export(job.dtype, job.shuffle).bytes(written, documents)
            needed += kept_bytes * (1 if job.shuffle is None else 2)
            notices += _check_space(folder, needed, request.options.force)
        run_count = len(sorted_runs.spans(manifest["tokens"].to_numpy(), frozen.run_tokens))
        shuffle = Shuffle.of(run_count, frozen.bins, frozen.merges, "uint32" if job.mask else dtype)
        conditions = [] if job.selection is None else [store.where for store in job.selection.stores]
        parts = stores.parts_without_erased(left_out, conditions)
        context = ExportContext(parts, folder.root, frozen, shuffle, batch_bytes(resources.worker_bytes))
        fan_out = FanOut(pool, report, resources.workers, np.dtype(job.dtype).itemsize)
        exporter = Exporter(context, folder, manifest, fan_out, notices, rank_share)
        exporter.announce()
        pool.start(resources.workers, resources.worker_bytes, most_workers=resources.most_workers)
        exporter.run()
        result = exporter.result(time.monotonic() - started)
        return msgspec.structs.replace(result, sources=selected.tokens) if selected else result


@contextmanager
def _hold_export(
    folder: Folder, directories: set[str], rank_share: RankShare | None, report: progress.Reporter
) -> Iterator[None]:
    """Hold the lock of an export, alone or with other ranks, and remove temporary files that no process uses."""
    if rank_share is None:
        with folder.locks.exclusive(names.LOCK), _alone(folder, report):
            _remove_temporaries(folder, directories)
            yield
        return
    with folder.locks.shared(names.LOCK):
        yield
    with suppress(UsageError), folder.locks.exclusive(names.LOCK):  # no other rank is left
        _remove_temporaries(folder, directories)


def _remove_temporaries(folder: Folder, directories: set[str]) -> None:
    for name in directories:
        folder.remove_temporaries(name)


@contextmanager
def _alone(folder: Folder, report: progress.Reporter) -> Iterator[None]:
    """Wait until no other process exports to a directory in an object store, which has no locks.

    Two exports at once would remove each other's sorted runs. Afterwards, the files of the other one are there.
    """
    if not folder.is_remote:
        yield
        return
    message = f"waiting for another process that exports to {folder.root}"
    with run_once(folder.locks, EXPORTING, lambda: False, lambda: report.pending(message)):
        yield


def _check_space(folder: Folder, needed: int, force: bool) -> list[str]:
    """Raise if the disk is too small for an export; with `force`, return a notice instead."""
    free = free_bytes(folder)
    if free is None or needed <= free:
        return []
    if not force:
        raise too_small(folder.root, free, needed)
    return [f"about {size(needed)} are needed, and {size(free)} are free"]


def _freeze_work(job: ExportJob, resources: Resources, workers: int, tokens: int, token_bytes: int) -> FrozenExport:
    """Choose how a shuffle divides its work. `workers` are those of all ranks."""
    shard_bytes = shards.tokens_per_shard(job) * token_bytes
    work = ShuffleWork.of(tokens * token_bytes, shard_bytes, workers, resources.worker_bytes)
    return FrozenExport(job, work.bins, work.run_bytes // token_bytes + 1, work.merges)
