"""Deaths and failures in sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenmill.errors import BadDocument, RunFailed
from tokenmill.executors.messages import (
    COMMITTED_STAYS,
    NAMED_FAILURES,
    _reasons,
    describe_death,
    exit_code_of_failures,
    out_of,
)
from tokenmill.executors.outcomes import Died, Failed, Worker
from tokenmill.humanize import count
from tokenmill.pipeline.position import STAGES, position_in
from tokenmill.pipeline.retry_policy import FailureClass, classify
from tokenmill.sources.bad_rows import NOT_TEXT
from tokenmill.store import quarantine

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from tokenmill.pipeline.isolate import ExcludedRow
    from tokenmill.pipeline.plan import UnitTask
    from tokenmill.sources.documents import SourceFile
    from tokenmill.storage import Folder

MEASURES = {"parquet": "row groups", "arrow": "record batches"}
"""What a slice of a source is counted in, where rows have numbers; elsewhere it is bytes."""

PERCENT = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
"""Limits for bad documents that a message may advise."""

ANOTHER_COLUMN = "The column is frozen with the run: for another one use another --out, or remove the directory."


def describe_unit_death(task: UnitTask, death: Died[Any]) -> str:
    """The same, for the unit it had."""
    return describe_death(death, f"unit {task.unit} ({span(task)}){describe_position(task, death)}")


def describe_position(task: UnitTask, trouble: Died[Any] | Failed[Any]) -> str:
    """Where in its unit a worker was, as far as it has told."""
    place = position_in(trouble.note)
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
    return f"{span(failure.item)}{describe_position(failure.item, failure)}"


def run_failed(failures: Sequence[Failed[UnitTask] | Died[UnitTask]], left: int, units: int, log: str) -> RunFailed:
    """The error that ends a run whose units could not all be done."""
    columns_only = all(
        isinstance(failure, Failed) and classify(failure) is FailureClass.NO_COLUMN for failure in failures
    )
    return RunFailed(
        f"{out_of(left, units, 'unit')} not done",
        *_reasons(failures, lambda task: f"unit {task.unit}", unit_span, f": see {log}"),
        ANOTHER_COLUMN if columns_only else COMMITTED_STAYS,
        exit_code=exit_code_of_failures(failures),
    )


@dataclass(frozen=True, slots=True)
class BadRowCounts:
    """How many rows are bad, for each reason, of how many: of all rows, or of those that were read before the end."""

    reasons: Counter[str]
    rows: int
    column: str
    so_far: bool = False

    @property
    def bad(self) -> int:
        """The bad rows, whatever the reason."""
        return self.reasons.total()

    @property
    def share(self) -> float:
        """The bad rows among all of them."""
        return self.bad / max(self.rows, 1)

    def sentence(self) -> str:
        """How many of how many."""
        if self.so_far:
            return f"{self.bad:,} of the {count(self.rows, 'row')} read so far cannot be tokenized: {self.share:.2%}"
        return f"{count(self.bad, 'document')} of {self.rows:,} cannot be tokenized: {self.share:.2%}"

    def question(self) -> list[str]:
        """What is most likely wrong, if most rows have no text where it should be."""
        if 2 * self.reasons[NOT_TEXT] <= self.rows:
            return []
        return [f"Is --column {self.column} right? Most of its values are no text: another one needs another --out."]

    def enough(self) -> str:
        """A limit that is larger than the share, in percent."""
        return next(f"{percent:g}%" for percent in (*PERCENT, 100) if percent > 100 * self.share or percent == 100)


def too_many_bad(folder: Folder, found: BadRowCounts, max_bad: float, log: str) -> RunFailed:
    """The error that ends a run with more bad documents than may be."""
    return RunFailed(
        f"{found.sentence()}, more than --max-bad {100 * max_bad:g}%",
        *(f"{number:>11,}  {reason}" for reason, number in found.reasons.most_common(NAMED_FAILURES)),
        f"named in     {folder.path(quarantine.TOGETHER)}",
        f"             and {log}, if their unit is not done",
        *found.question(),
        "What is committed stays. Repair the sources and use another --out, or run it again and allow more:",
        f"{'' if max_bad else '--on-bad quarantine '}--max-bad {found.enough()}",
    )


def bad_document(task: UnitTask, verdict: ExcludedRow, worker: Worker) -> Failed[UnitTask]:
    """The failure of a unit because of a document that nothing can be done with, where that is not allowed."""
    error = BadDocument(
        f"a document {verdict.reason}",
        f"file         {task.file(verdict.where.source).path}",
        f"found at     {row_name(task.file(verdict.where.source), verdict.where.row)}",
        *([f"detail       {verdict.detail}"] if verdict.detail else []),
        "Leave it out with --on-bad quarantine, or remove it.",
    )
    return Failed(task, "BadDocument", str(error), explained=True, traceback="", worker=worker)
