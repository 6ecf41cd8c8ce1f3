"""Write the manifest of a store whose parts are all there, by whomever they were made."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager

import msgspec
import numpy as np

from tokenmill.errors import CorruptStore, IncompleteStore
from tokenmill.executors import progress
from tokenmill.executors.fan_out import FanOut
from tokenmill.executors.outcomes import Pool
from tokenmill.executors.session import check_executor, open_executor
from tokenmill.humanize import count
from tokenmill.pipeline.freeze import load_existing, refuse_old_format
from tokenmill.pipeline.manifest import ManifestBuilder
from tokenmill.pipeline.messages import BadRowCounts, too_many_bad
from tokenmill.pipeline.request import BadDocumentPolicy
from tokenmill.pipeline.resources import plan_resources
from tokenmill.pipeline.run_once import FINISHING, run_once
from tokenmill.storage import Folder, folder_at
from tokenmill.store import event_log, layout, quarantine
from tokenmill.store.part import part_name

PRELOAD = ("tokenmill.pipeline.tokenize",)
PARTS_PER_WORKER = 10_000
"""With fewer parts to look at for each, another worker is not worth its start."""


class FinishResult(msgspec.Struct, frozen=True):
    """A store that is complete. `written_now` tells whether its manifest was written by this call."""

    directory: str
    units: int
    documents: int
    tokens: int
    text_bytes: int
    skipped_rows: int
    quarantined: int
    written_now: bool
    seconds: float


def finish(  # noqa: PLR0913 - the options of the command, by their names
    directory: str,
    *,
    max_bad: str | float = 0.001,
    workers: int | None = None,
    on: str = "local",
    reporter: progress.Reporter | None = None,
    executor: Pool | None = None,
) -> FinishResult:
    """Write the manifest if every unit has its part; raise IncompleteStore if not. A complete store stays as it is."""
    share = BadDocumentPolicy.parse(max_bad=max_bad).max_bad
    check_executor(on)
    started = time.monotonic()
    folder = folder_at(directory)
    run = layout.require_run(folder)
    layout.refuse_suspect(folder, run)
    if not _is_complete(folder):
        refuse_old_format(folder, run)
    written = not _is_complete(folder) and _complete(
        folder, run, share, workers, open_executor(on, PRELOAD, executor, reporter)
    )
    manifest = layout.require_manifest(folder, run)
    totals = {name: int(np.sum(manifest[name].to_numpy())) for name in layout.COUNT_COLUMNS}
    return FinishResult(
        directory=folder.root,
        units=run.units,
        documents=totals["documents"],
        tokens=totals["tokens"],
        text_bytes=totals["text_bytes"],
        skipped_rows=totals["skipped"],
        quarantined=totals["quarantined"],
        written_now=written,
        seconds=round(time.monotonic() - started, 3),
    )


def _is_complete(folder: Folder) -> bool:
    return folder.exists(layout.MANIFEST)


def _complete(
    folder: Folder,
    run: layout.Run,
    max_bad: float,
    workers: int | None,
    place: AbstractContextManager[tuple[Pool, progress.Reporter]],
) -> bool:
    """Write the manifest, unless another process does while this one waits; whether it was this one."""
    _refuse_gaps(folder, layout.committed_units(folder, run.units))
    told = "manifest     another process is writing it"
    with (
        place as (pool, report),
        folder.shared_lock(layout.LOCK),
        run_once(folder, FINISHING, lambda: _is_complete(folder), lambda: report.pending(told)) as is_ours,
    ):
        if is_ours:
            means = plan_resources(workers, None, run.units // PARTS_PER_WORKER + 1, room=pool.room)
            pool.start(means.workers, means.worker_bytes, most_workers=means.most_workers)
            _write(folder, run, FanOut(pool, report, means.workers), max_bad)
    layout.remove_stale_temporaries(folder)
    return is_ours


def _refuse_gaps(folder: Folder, committed: np.ndarray) -> None:
    missing = np.flatnonzero(~committed)
    if len(missing):
        raise IncompleteStore(
            f"{count(len(missing), 'unit')} of {len(committed):,} {'has' if len(missing) == 1 else 'have'} no part yet",
            f"store        {folder.root}",
            f"first        unit {missing[0]}",
            "Run the same `tokenmill prepare` again, with or without --rank, to do what is missing.",
        )


def _write(folder: Folder, run: layout.Run, crew: FanOut, max_bad: float) -> None:
    frozen = load_existing(folder, run)
    builder = ManifestBuilder(folder, run, frozen.plan, frozen.sources)
    invalid = {part.unit: part.reason for part in builder.add_from_parts(crew, np.arange(run.units))}
    sizes = layout.part_sizes(folder, run.units)
    unusable = invalid | dict.fromkeys(builder.truncated(sizes), "its file is gone or cut off")
    if unusable:
        unit = min(unusable)
        raise CorruptStore(
            f"{count(len(unusable), 'part')} of {folder.root} cannot be used",
            f"first        {folder.path(part_name(unit))}",
            f"reason       {unusable[unit]}",
            "Run the same `tokenmill prepare` again: it makes these parts again, and no other.",
        )
    if builder.quarantined > max_bad * builder.rows:
        found = BadRowCounts(builder.bad_reasons(), builder.rows, run.job.column)
        raise too_many_bad(folder, found, max_bad, event_log.path(folder))
    quarantine.gather(folder, np.ones(run.units, np.bool_))
    builder.publish(sizes)
