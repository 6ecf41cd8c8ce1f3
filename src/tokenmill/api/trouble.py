"""Deaths and failures in sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from tokenmill import quarantine
from tokenmill.errors import BadDocument, RunFailed, TokenmillError
from tokenmill.executors.outcomes import Cause, Died, Failed, Item, Worker
from tokenmill.places import STAGES, place_in
from tokenmill.wording import count, size

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Sequence

    from tokenmill.isolation import Verdict
    from tokenmill.planning import UnitTask
    from tokenmill.sources.documents import SourceFile
    from tokenmill.storage import Folder

Error = TypeVar("Error", bound=TokenmillError)
NAMED_FAILURES = 5
MEASURES = {"parquet": "row groups", "arrow": "record batches"}
"""What a slice of a source is counted in, where rows have numbers; elsewhere it is bytes."""

COMMITTED_STAYS = "What is committed stays. When the cause is gone, run the same command again."


def obituary(death: Died[Any], what: str) -> str:
    """Who died, how, of what, and with how much memory."""
    words = f"; it said: {death.said}" if death.said else ""
    if death.end.cause is Cause.LOST:
        return f"a worker on {death.worker.node} {death.how}; it had {what} for {death.seconds:.1f} s"
    memory = f"peak memory {size(death.worker.peak_bytes)}"
    return f"{death.worker} {death.how} on {what} after {death.seconds:.1f} s, {memory}{words}"


def raised_again(failure: Failed[Any], kind: type[Error]) -> Error:
    """An error that explained itself in a worker, to be raised here."""
    return kind(*(line.strip() for line in failure.message.splitlines()))


def fewer_workers(workers: int) -> str:
    """What follows from a death for lack of memory."""
    return f"memory ran out: going on with {count(workers, 'worker')}"


def unit_obituary(task: UnitTask, death: Died[Any]) -> str:
    """The same, for the unit it had."""
    return obituary(death, f"unit {task.unit} ({span(task)}){whereabouts(task, death)}")


def whereabouts(task: UnitTask, trouble: Died[Any] | Failed[Any]) -> str:
    """Where in its unit a worker was, as far as it has told."""
    place = place_in(trouble.note)
    if place is None:
        return ""
    stage = STAGES.get(place.stage, place.stage)
    if place.source is None:
        return f" while {stage}"
    file = task.file(place.source)
    of = f" of {file.path}" if len(task.files) > 1 else ""
    if place.first is None or place.last is None:
        return f" while {stage}{of}"
    if place.stage == "read":
        return f" while {stage} on after {row_name(file, place.last)}{of}"
    if place.first == place.last:
        return f" while {stage} {row_name(file, place.first)}{of}"
    several = "rows" if file.kind in MEASURES else "the documents at bytes"
    return f" while {stage} {several} {place.first:,} to {place.last:,}{of}"


def row_name(file: SourceFile, row: int) -> str:
    """A row as people find it: by its number, or by the byte at which the document starts."""
    return f"row {row:,}" if file.kind in MEASURES else f"the document at byte {row:,}"


def span(task: UnitTask) -> str:
    """What a unit is made of."""
    first = task.files[0]
    if len(task.files) > 1:
        return f"{first.path} and {len(task.files) - 1} more files"
    if task.piece is None:
        return first.path
    return f"{first.path}, {MEASURES.get(first.kind, 'bytes')} {task.piece.start:,} to {task.piece.stop:,}"


def unit_span(failure: Failed[UnitTask] | Died[UnitTask]) -> str:
    """The same, with where in it the worker was."""
    return f"{span(failure.item)}{whereabouts(failure.item, failure)}"


def run_failed(failures: Sequence[Failed[UnitTask] | Died[UnitTask]], left: int, units: int, log: str) -> RunFailed:
    """The error that ends a run whose units could not all be done."""
    return RunFailed(
        f"{left:,} of {units:,} units are not done",
        *_reasons(failures, lambda task: f"unit {task.unit}", unit_span, f": see {log}"),
        COMMITTED_STAYS,
    )


def too_many_bad(folder: Folder, reasons: Counter[str], rows: int, max_bad: float, log: str) -> RunFailed:
    """The error that ends a run with more bad documents than may be."""
    bad = reasons.total()
    share = bad / max(rows, 1)
    return RunFailed(
        f"{count(bad, 'document')} of {rows:,} cannot be tokenized: {share:.2%}, more than --max-bad {max_bad:g}",
        *(f"{number:>11,}  {reason}" for reason, number in reasons.most_common(NAMED_FAILURES)),
        f"named in     {folder.path(quarantine.TOGETHER)}",
        f"             and {log}, if their unit is not done",
        "What is committed stays. Repair the sources and use another --out, or run it again and allow more:",
        "--max-bad 1%" if max_bad else "--on-bad quarantine --max-bad 0.1%",
    )


def bad_document(task: UnitTask, verdict: Verdict, worker: Worker) -> Failed[UnitTask]:
    """The failure of a unit because of a document that nothing can be done with, where that is not allowed."""
    error = BadDocument(
        f"a document {verdict.reason}",
        f"file         {task.file(verdict.where.source).path}",
        f"found at     {row_name(task.file(verdict.where.source), verdict.where.row)}",
        *([f"detail       {verdict.detail}"] if verdict.detail else []),
        "Leave it out with --on-bad quarantine, or remove it.",
    )
    return Failed(task, "BadDocument", str(error), explained=True, traceback="", worker=worker)


def work_failed(failures: Sequence[Failed[Item] | Died[Item]], describe: Callable[[Item], str]) -> RunFailed:
    """The error that ends other work, some of which could not be done."""
    return RunFailed(
        "not everything could be done", *_reasons(failures, describe, lambda it: describe(it.item), ""), COMMITTED_STAYS
    )


def _reasons(
    failures: Sequence[Failed[Item] | Died[Item]],
    name: Callable[[Item], str],
    place: Callable[[Failed[Item] | Died[Item]], str],
    more: str,
) -> list[str]:
    details = []
    for failure in failures[:NAMED_FAILURES]:
        lines = _reason(failure, place(failure)).splitlines()
        node = [f"  node         {failure.worker.node}"] if failure.worker.node else []
        details += [f"{name(failure.item)}: {lines[0]}", *node, *lines[1:]]
    if len(failures) > NAMED_FAILURES:
        details.append(f"and {len(failures) - NAMED_FAILURES} more{more}")
    return details


def _reason(failure: Failed[Item] | Died[Item], place: str) -> str:
    if isinstance(failure, Died):
        return obituary(failure, place)
    if failure.explained:
        return failure.message
    return f"{failure.kind}: {failure.message or 'no message'}\n  in           {place}"
