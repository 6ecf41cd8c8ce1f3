"""Keep the parts that were made from what the sources hold now, when a run is frozen again.

A part names its slice by content, so it is recognised wherever the plan puts that slice. What was made from anything
else is removed, and its unit is done again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tokenmill.errors import CorruptStore, JobChanged
from tokenmill.executors.fan_out import FanOut, run_all
from tokenmill.executors.outcomes import DEFAULT_POLICY
from tokenmill.pipeline import plan
from tokenmill.pipeline.check_parts import ANY_SLICE, CheckParts, InvalidPart
from tokenmill.pipeline.freeze import publish_again
from tokenmill.pipeline.source_changes import USE_THE_ORIGINAL
from tokenmill.pipeline.verify import CompareText
from tokenmill.store import layout
from tokenmill.store.part import open_part, part_name, write_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa

    from tokenmill.executors.outcomes import Executor
    from tokenmill.executors.progress import Reporter
    from tokenmill.pipeline.freeze import FrozenRun
    from tokenmill.pipeline.units import WorkerLimits
    from tokenmill.storage import Folder
    from tokenmill.store.job import Job
    from tokenmill.store.part import PartSummary

PARTS_PER_ITEM = 1000


def adopt(folder: Folder, frozen: FrozenRun, limits: WorkerLimits, executor: Executor, report: Reporter) -> FrozenRun:
    """Publish a run that was frozen again, after its parts were compared with its sources."""
    if not frozen.files and not frozen.unproved.any():
        return frozen
    run = layout.read_run(folder)
    if run is not None and layout.has_foreign_manifest(folder, run):
        layout.withdraw_manifest(folder)
    was_complete = run is not None and folder.exists(layout.MANIFEST)
    manifest = _own_manifest(folder) if was_complete else None
    slices = plan.SliceDigests(frozen.plan, frozen.sources)
    homes = {slices[unit]: unit for unit in range(frozen.run.units)}
    crew = FanOut(executor, report, 1)
    present = ((unit, ANY_SLICE) for unit in layout.numbered_parts(folder))
    parts = list(check_parts(crew, folder, frozen.run.job, present))
    settled = {part.unit for part in parts if not isinstance(part, InvalidPart) and homes.get(part.slice) == part.unit}
    moves: dict[int, int] = {}
    dropped: list[int] = []
    for part in parts:
        home = None if isinstance(part, InvalidPart) else homes.get(part.slice)
        if part.unit in settled or (isinstance(part, InvalidPart) and part.unit >= frozen.run.units):
            continue  # the latter is no file of ours
        if isinstance(part, InvalidPart) or home is None or home in settled or part.quarantined_rows:
            dropped.append(part.unit)
        else:
            moves[part.unit] = home
    remove_parts(folder, dropped)
    _move(folder, moves)
    outdated = _with_other_text(folder, frozen, limits, crew)
    if outdated and was_complete:
        raise _changed_under_complete(folder, frozen, outdated)
    remove_parts(folder, outdated)
    if frozen.files:
        publish_again(folder, frozen)
    if manifest is not None and folder.exists(layout.MANIFEST):  # it lists the same parts, and names the run of before
        layout.publish_manifest(folder, frozen.run, manifest)
    return replace(frozen, files={}, unproved=np.zeros(0, np.bool_))


def _own_manifest(folder: Folder) -> pa.Table | None:
    """The manifest of the run that a directory holds; None if it is damaged or belongs to another run."""
    try:
        return layout.read_manifest(folder, layout.require_run(folder))
    except CorruptStore:
        return None


def _changed_under_complete(folder: Folder, frozen: FrozenRun, units: list[int]) -> JobChanged:
    """The error for sources of a complete store that hold other text now: the store may be in use."""
    task = next(plan.tasks(frozen.plan, frozen.sources, units[:1]))
    return JobChanged(
        "the sources changed since this store was completed",
        f"store        {folder.root}",
        f"changed      {task.files[0].path}",
        USE_THE_ORIGINAL,
    )


def refuse_for_ranks(frozen: FrozenRun) -> None:
    """Refuse to compare parts with sources in one of several ranks: the others would work on the store meanwhile."""
    if frozen.files or frozen.unproved.any():
        raise JobChanged(
            "the parts of this store have to be compared with their sources first",
            *(f"reason       {note}" for note in frozen.notes),
            "Run the same command once without --rank.",
        )


def check_parts(
    crew: FanOut, folder: Folder, job: Job, parts: Iterable[tuple[int, str]], *, content_too: bool = False
) -> Iterator[PartSummary | InvalidPart]:
    """What each part states about itself, or what is wrong with it; in no order."""
    check = CheckParts(folder.root, job, content_too)
    for done in crew.run(check, _batched(parts, 1 if content_too else PARTS_PER_ITEM), lambda _: "parts of the store"):
        yield from done.value


def remove_parts(folder: Folder, units: Iterable[int]) -> None:
    """Remove the parts of some units. The manifest goes first: without it the store is incomplete."""
    for number, unit in enumerate(units):
        if not number:
            layout.withdraw_manifest(folder)
        folder.discard(layout.rechecked_name(unit))
        folder.discard(part_name(unit))


def _batched(parts: Iterable[tuple[int, str]], size: int) -> Iterator[tuple[tuple[int, str], ...]]:
    batch: list[tuple[int, str]] = []
    for part in parts:
        batch.append(part)
        if len(batch) == size:
            yield tuple(batch)
            batch = []
    if batch:
        yield tuple(batch)


def _move(folder: Folder, moves: dict[int, int]) -> None:
    """Give parts the numbers of their units in the new plan. The order keeps each number free when it is needed."""
    if moves:
        layout.withdraw_manifest(folder)
    upwards = sorted((unit for unit, home in moves.items() if home > unit), reverse=True)
    downwards = sorted(unit for unit, home in moves.items() if home < unit)
    for unit in (*upwards, *downwards):
        summary, content = open_part(folder, unit)
        folder.discard(layout.rechecked_name(moves[unit]))  # it was the mark of another part
        write_part(folder, msgspec.structs.replace(summary, unit=moves[unit]), content)
        remove_parts(folder, [unit])


def _with_other_text(folder: Folder, frozen: FrozenRun, limits: WorkerLimits, crew: FanOut) -> list[int]:
    """The units whose parts were not made from the text that their sources hold now."""
    first, number = (frozen.plan[name].to_numpy().astype(np.int64) for name in ("source", "sources"))
    unproved = np.concatenate([np.zeros(1, np.int64), np.cumsum(frozen.unproved)])
    is_doubtful = unproved[first + number] > unproved[first]
    units = np.flatnonzero(is_doubtful & layout.committed_units(folder, frozen.run.units))
    tasks = plan.tasks(frozen.plan, frozen.sources, units)
    equal = set()
    if len(units):
        crew.begin("compare", int(frozen.plan["text_bytes"].to_numpy()[units].sum()))
    for done in run_all(
        crew.executor,
        CompareText(folder.root, frozen.run.job, limits),
        tasks,
        policy=DEFAULT_POLICY,
        on_failure=lambda failure: crew.count(failure.item.text_bytes, failure.item.text_bytes, 0),
    ):
        if done.value:
            equal.add(done.item.unit)
        crew.count(done.item.text_bytes, done.item.text_bytes, 0)
    return [unit for unit in units.tolist() if unit not in equal]
