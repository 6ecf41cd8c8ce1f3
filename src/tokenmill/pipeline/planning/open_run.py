"""Opens the run of a store, and keeps the parts that were made from what the sources hold now.

A part names its slice by content, so it is recognized under whatever unit the plan puts that slice. Any other part is
removed, and its unit is done again.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.errors import TRY_AGAIN, CorruptStore, JobChanged
from tokenmill.executors.fan_out import FanOut, run_all
from tokenmill.executors.messages import work_failed
from tokenmill.executors.outcomes import DEFAULT_POLICY, Died, Executor, Failed
from tokenmill.executors.progress import Reporter
from tokenmill.executors.ranks import RankShare
from tokenmill.pipeline.planning.compare import USE_THE_ORIGINAL
from tokenmill.pipeline.planning.freeze import FrozenRun, freeze, grow, publish_again, publish_lists
from tokenmill.pipeline.planning.request import PrepareRequest
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.pipeline.unit.part_summaries import ANY_SLICE, CheckParts, InvalidPart
from tokenmill.pipeline.unit.verify import CompareText
from tokenmill.storage import Folder
from tokenmill.storage.run_once import PLANNING, run_once
from tokenmill.store import layout
from tokenmill.store.chain import FIRST, StoreVersion, withdraw_manifest
from tokenmill.store.job import Job
from tokenmill.store.kept import publish_kept, read_kept
from tokenmill.store.layout import kept_name, part_name
from tokenmill.store.manifest import publish_manifest
from tokenmill.store.part import PartSummary, check_content, open_part, write_part
from tokenmill.store.state import State, look, rechecked_name

# How many parts a worker checks at a time, by their headers.
PARTS_PER_ITEM = 1000


@contextmanager
def hold_store(folder: Folder, rank_share: RankShare | None) -> Iterator[None]:
    """Hold the lock of the store, alone or with other ranks, and remove temporary files that no process uses.

    A directory that was created here and stayed empty, because nothing could be planned, is removed again.
    """
    is_new = folder.create()
    if rank_share is None:
        with folder.locks.exclusive(layout.LOCK):
            layout.remove_temporaries(folder)
            try:
                yield
            finally:
                if is_new:
                    folder.locks.remove_if_empty(layout.LOCK)
        return
    with folder.locks.shared(layout.LOCK):
        yield
    layout.remove_stale_temporaries(folder)


def open_run(  # noqa: PLR0913, PLR0917 - the store, the request, and what plans and checks it
    folder: Folder,
    request: PrepareRequest,
    limits: WorkerLimits,
    executor: Executor,
    report: Reporter,
    rank_share: RankShare | None,
    moved: Sequence[str] = (),
) -> FrozenRun:
    """The run of this request, frozen and published. Of several ranks one plans it, and the others wait for that."""
    if rank_share is None:
        frozen = freeze(folder, request, executor, report.pending, moved)
        return grow(folder, adopt(folder, frozen, limits, executor, report), request)
    message = "plan         another rank is at it"
    with run_once(folder.locks, PLANNING, lambda: folder.exists(layout.RUN), lambda: report.pending(message)):
        frozen = freeze(folder, request, executor, report.pending)
    if frozen.files or frozen.unproved.any():  # the other ranks would work on the store while its parts are compared
        raise JobChanged(
            "the parts of this store have to be compared with their sources first",
            *(f"reason       {note}" for note in frozen.notes),
            "Run the same command once without --rank.",
        )
    return grow(folder, frozen, request)


def adopt(folder: Folder, frozen: FrozenRun, limits: WorkerLimits, executor: Executor, report: Reporter) -> FrozenRun:
    """Publish a run that was frozen again, after its parts were compared with its sources."""
    if not frozen.files and not frozen.unproved.any():
        return frozen
    publish_lists(folder, frozen)
    found = look(folder)
    if found.has_foreign_manifest:
        withdraw_manifest(folder)
    was_complete = found.state in {State.COMPLETE, State.SUSPECT}
    fan_out = FanOut(executor, report, 1)
    slices = plan.SliceDigests(frozen.plan, frozen.sources)
    unit_of = {slices[unit]: unit for unit in range(frozen.run.units)}
    present = ((unit, ANY_SLICE) for unit in layout.numbered_parts(folder))
    parts = list(check_parts(fan_out, folder, frozen.run.job, present, frozen.head.version))
    kept = {part.unit for part in parts if not isinstance(part, InvalidPart) and unit_of.get(part.slice) == part.unit}
    moves: dict[int, int] = {}
    dropped: list[int] = []
    for part in parts:
        target = None if isinstance(part, InvalidPart) else unit_of.get(part.slice)
        if part.unit in kept or (isinstance(part, InvalidPart) and part.unit >= frozen.run.units):
            continue  # an invalid file beyond the plan is not a part of this run
        if isinstance(part, InvalidPart) or target is None or target in kept or part.quarantined_rows:
            dropped.append(part.unit)
        else:
            moves[part.unit] = target
    remove_parts(folder, dropped)
    _move(folder, moves)
    outdated = with_other_text(folder, frozen, limits, fan_out, _doubtful_units(folder, frozen))
    damaged = damaged_parts(fan_out, folder, frozen, outdated)
    remove_parts(folder, damaged)
    outdated = [unit for unit in outdated if unit not in damaged]
    if outdated and was_complete:  # the store may be in use
        task = next(plan.tasks(frozen.plan, frozen.sources, outdated[:1]))
        raise JobChanged(
            "the sources changed since this store was completed",
            f"store        {folder.root}",
            f"changed      {task.files[0].path}",
            USE_THE_ORIGINAL,
        )
    remove_parts(folder, outdated)
    if frozen.files:
        publish_again(folder, frozen)
    if was_complete and folder.exists(layout.MANIFEST):  # it lists the same parts, but names the earlier run
        publish_manifest(folder, frozen.run, found.base)
    return replace(frozen, files={}, unproved=np.zeros(0, np.bool_))


def check_parts(  # noqa: PLR0913 - a store, its parts, and how they are checked
    fan_out: FanOut,
    folder: Folder,
    job: Job,
    parts: Iterable[tuple[int, str]],
    version: StoreVersion = FIRST,
    *,
    content_too: bool = False,
) -> Iterator[PartSummary | InvalidPart]:
    """The summary of each part of a version of the store, or what is wrong with it; in no order."""
    check = CheckParts(folder.root, job, version, content_too)
    batches = _batched(parts, 1 if content_too else PARTS_PER_ITEM)
    for done in fan_out.run(check, batches, lambda _: "parts of the store"):
        yield from done.value


def damaged_parts(fan_out: FanOut, folder: Folder, frozen: FrozenRun, units: list[int]) -> set[int]:
    """Those of the units whose parts are not as they were written."""
    parts = ((unit, ANY_SLICE) for unit in units)
    checked = check_parts(fan_out, folder, frozen.run.job, parts, frozen.head.version, content_too=True)
    return {part.unit for part in checked if isinstance(part, InvalidPart)}


def remove_parts(folder: Folder, units: Iterable[int]) -> None:
    """Remove the parts of some units. The manifest is removed first: without it the store counts as incomplete."""
    for number, unit in enumerate(units):
        if not number:
            withdraw_manifest(folder)
        folder.discard(rechecked_name(unit))
        folder.discard(part_name(unit))
        folder.discard(kept_name(unit))


def _batched(parts: Iterable[tuple[int, str]], size: int) -> Iterator[tuple[tuple[int, str], ...]]:
    remaining = iter(parts)
    while batch := tuple(itertools.islice(remaining, size)):
        yield batch


def _move(folder: Folder, moves: dict[int, int]) -> None:
    """Rename parts to their units in the new plan. The order makes sure that each new name is free.

    A part gets new checksums, so its content is checked first. The unit of a damaged part is done again.
    """
    if moves:
        withdraw_manifest(folder)
    upwards = sorted((unit for unit, target in moves.items() if target > unit), reverse=True)
    downwards = sorted(unit for unit, target in moves.items() if target < unit)
    for unit in (*upwards, *downwards):
        with suppress(CorruptStore):
            summary, content = open_part(folder, unit)
            check_content(folder, summary, content)
            folder.discard(rechecked_name(moves[unit]))  # the mark belonged to another part
            if summary.kept:
                publish_kept(folder, kept_name(moves[unit]), read_kept(folder, summary, ()))
            write_part(folder, msgspec.structs.replace(summary, unit=moves[unit]), content)
        remove_parts(folder, [unit])


def _doubtful_units(folder: Folder, frozen: FrozenRun) -> npt.NDArray[np.int64]:
    """The units with a part and with a source that may have changed."""
    first, number = (frozen.plan[name].to_numpy().astype(np.int64) for name in ("source", "sources"))
    unproved = np.concatenate([np.zeros(1, np.int64), np.cumsum(frozen.unproved)])
    is_doubtful = unproved[first + number] > unproved[first]
    return np.flatnonzero(is_doubtful & layout.committed_units(folder, frozen.run.units))


def with_other_text(
    folder: Folder, frozen: FrozenRun, limits: WorkerLimits, fan_out: FanOut, units: npt.NDArray[np.int64]
) -> list[int]:
    """Those of the units whose parts were not made from the text that their sources hold now."""
    tasks = plan.tasks(frozen.plan, frozen.sources, units)
    equal = set()

    def on_failure(failure: Failed[plan.UnitTask] | Died[plan.UnitTask]) -> None:
        # Nothing is known about the text if the store is damaged or the network fails: no part may be removed for it.
        if isinstance(failure, Failed) and failure.exit_code in {TRY_AGAIN, CorruptStore.exit_code}:
            raise work_failed([failure], lambda task: task.files[0].path)
        fan_out.count(failure.item.text_bytes, failure.item.text_bytes, 0)

    if len(units):
        fan_out.begin("compare", int(frozen.plan["text_bytes"].to_numpy()[units].sum()))
    for done in run_all(
        fan_out.executor,
        CompareText(folder.root, frozen.run.job, limits, frozen.head.version),
        tasks,
        policy=DEFAULT_POLICY,
        on_failure=on_failure,
    ):
        if done.value:
            equal.add(done.item.unit)
        fan_out.count(done.item.text_bytes, done.item.text_bytes, 0)
    return [unit for unit in units.tolist() if unit not in equal]
