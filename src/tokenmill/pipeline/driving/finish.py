"""Write the manifest of a store whose parts are all there, whichever processes made them."""

from __future__ import annotations

from functools import partial

import numpy as np

from tokenmill.errors import CorruptStore, IncompleteStore
from tokenmill.executors.fan_out import FanOut
from tokenmill.executors.outcomes import Pool
from tokenmill.executors.progress import Reporter
from tokenmill.humanize import count
from tokenmill.pipeline.driving.manifest import ManifestBuilder
from tokenmill.pipeline.driving.row_limits import RowLimits
from tokenmill.pipeline.planning.freeze import load_existing
from tokenmill.pipeline.planning.resources import plan_resources
from tokenmill.storage import Folder
from tokenmill.storage.run_once import FINISHING, run_once
from tokenmill.store import event_log, layout, quarantine
from tokenmill.store.job import Run
from tokenmill.store.layout import part_name
from tokenmill.store.rank_summaries import remove_summaries
from tokenmill.store.tables import log_run

# With fewer parts for each worker, another worker is not worth its start.
PARTS_PER_WORKER = 10_000


def refuse_missing_parts(folder: Folder, run: Run) -> None:
    """Raise IncompleteStore if a unit has no part."""
    missing = np.flatnonzero(~layout.committed_units(folder, run.units))
    if len(missing):
        verb = "has" if len(missing) == 1 else "have"
        raise IncompleteStore(
            f"{count(len(missing), 'unit')} of {run.units:,} {verb} no part yet",
            f"store        {folder.root}",
            f"first        unit {missing[0]}",
            "Run the same `tokenmill prepare` again, with or without --rank, to do what is missing.",
        )


def write_manifest(
    folder: Folder, run: Run, limits: RowLimits, workers: int | None, session: tuple[Pool, Reporter]
) -> bool:
    """Write the manifest and return True, or return False if another process did so while this one waited."""
    pool, report = session
    is_done = partial(folder.exists, layout.MANIFEST)
    waiting = "manifest     another process is writing it"
    with (
        folder.locks.shared(layout.LOCK),
        run_once(folder.locks, FINISHING, is_done, lambda: report.pending(waiting)) as is_ours,
    ):
        if is_ours:
            resources = plan_resources(workers, None, run.units // PARTS_PER_WORKER + 1, room=pool.room)
            pool.start(resources.workers, resources.worker_bytes, most_workers=resources.most_workers)
            _write(folder, run, FanOut(pool, report, resources.workers), limits)
    return is_ours


def _write(folder: Folder, run: Run, fan_out: FanOut, limits: RowLimits) -> None:
    frozen = load_existing(folder, run)
    builder = ManifestBuilder(folder, run, frozen.plan, frozen.sources)
    builder.add_from_summaries()
    invalid = {part.unit: part.reason for part in builder.add_from_parts(fan_out, builder.missing())}
    sizes = layout.part_sizes(folder, run.units)
    unusable = invalid | dict.fromkeys(builder.truncated(sizes), "its file is gone or cut off")
    recorded = event_log.recorded_parts(folder, run.units, log_run(run))
    unrecorded = builder.unrecorded(np.arange(run.units), recorded).tolist()
    unusable = dict.fromkeys(unrecorded, "no log of this run records it, so it has to be compared") | unusable
    if not unusable:
        lost = quarantine.unrecorded(folder, builder.quarantined_units())
        unusable = dict.fromkeys(lost, "the records of its bad rows are lost")
    if unusable:
        unit = min(unusable)
        raise CorruptStore(
            f"{count(len(unusable), 'part')} of {folder.root} cannot be used",
            f"first        {folder.path(part_name(unit))}",
            f"reason       {unusable[unit]}",
            "Run the same `tokenmill prepare` again: it compares these parts with their sources, or makes them again.",
        )
    limits.check(folder, frozen, builder)
    quarantine.gather(folder, np.ones(run.units, np.bool_))
    builder.publish(sizes)
    remove_summaries(folder)
