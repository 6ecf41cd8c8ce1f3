"""Messages about deaths, failures and bad rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tokenmill.chat.spec import Chat
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
from tokenmill.pipeline.unit.isolate import ExcludedRow
from tokenmill.pipeline.unit.plan import STAGES, UnitTask, position_in
from tokenmill.sources import ROW_KINDS
from tokenmill.sources.bad_rows import NOT_AN_OBJECT, NOT_TEXT, NOT_UTF8, TOO_LONG
from tokenmill.sources.documents import SourceFile
from tokenmill.sources.missing_column import NoColumn
from tokenmill.storage import Folder
from tokenmill.store import quarantine
from tokenmill.store.job import Job

# The unit of a slice of a source whose rows have numbers; for other kinds it is bytes.
MEASURES = {
    "parquet": "row groups",
    "arrow": "record batches",
    "tokens": "tokens",
    "indexed-tokens": "documents",
}

# Limits for bad documents that a message may advise, in percent.
PERCENT = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)

ANOTHER_COLUMN = "The column is fixed for this run. For another column, choose a new --out or remove the directory."


def describe_unit_death(task: UnitTask, death: Died[Any]) -> str:
    """How the worker of a unit died, and where in the unit it was."""
    return describe_death(death, f"unit {task.unit} ({span(task)}){describe_position(task, death)}")


def describe_position(task: UnitTask, trouble: Died[Any] | Failed[Any]) -> str:
    """Where in its unit a worker was, as far as it marked its position."""
    position = position_in(trouble.note)
    if position is None:
        return ""
    stage = STAGES.get(position.stage, position.stage)
    if position.source is None:
        return f" while {stage}"
    file = task.file(position.source)
    of = f" of {file.path}" if len(task.files) > 1 else ""
    if position.first is None or position.last is None:
        return f" while {stage}{of}"
    if position.stage == "read":
        return f" while {stage} on after {row_name(file, position.last)}{of}"
    if position.first == position.last:
        return f" while {stage} {row_name(file, position.first)}{of}"
    several = "rows" if file.kind in ROW_KINDS else "the documents at bytes"
    return f" while {stage} {several} {position.first:,} to {position.last:,}{of}"


def row_name(file: SourceFile, row: int) -> str:
    """A row by its number, or by the byte at which the document starts."""
    return f"row {row:,}" if file.kind in ROW_KINDS else f"the document at byte {row:,}"


def span(task: UnitTask) -> str:
    """The sources of a unit."""
    first = task.files[0]
    if len(task.files) > 1:
        return f"{first.path} and {len(task.files) - 1} more files"
    if task.file_slice is None:
        return first.path
    return f"{first.path}, {MEASURES.get(first.kind, 'bytes')} {task.file_slice.start:,} to {task.file_slice.stop:,}"


def unit_span(failure: Failed[UnitTask] | Died[UnitTask]) -> str:
    """The sources of a unit, and where in them its worker was."""
    return f"{span(failure.item)}{describe_position(failure.item, failure)}"


def run_failed(failures: Sequence[Failed[UnitTask] | Died[UnitTask]], left: int, units: int, log: str) -> RunFailed:
    """The error that ends a run whose units could not all be done."""
    columns_only = all(isinstance(failure, Failed) and failure.is_a(NoColumn) for failure in failures)
    return RunFailed(
        f"{out_of(left, units, 'unit')} not done",
        *_reasons(failures, lambda task: f"unit {task.unit}", unit_span, f": see {log}"),
        advice=[ANOTHER_COLUMN if columns_only else COMMITTED_STAYS],
        exit_code=exit_code_of_failures(failures),
    )


# What to do if most documents are bad for a reason.
MOSTLY_BAD = {
    NOT_UTF8: "Most documents are not UTF-8. Convert the files, and use a new --out: iconv -f WINDOWS-1252 -t UTF-8",
    NOT_AN_OBJECT: "Most lines are not JSON objects: convert the files: jq -c . FILE > NEW.jsonl",
    TOO_LONG: "Most documents are too long. Use a larger --max-document-bytes and a new --out, or split them.",
}


@dataclass(frozen=True, slots=True)
class RowCounts:
    """How many of `rows` are bad, or without text, for each reason.

    `so_far`: the run was aborted, and `rows` are those read by then.
    """

    reasons: Counter[str]
    rows: int
    column: str
    so_far: bool = False

    @property
    def total(self) -> int:
        """The rows of all reasons."""
        return self.reasons.total()

    @property
    def fraction(self) -> float:
        """The fraction of rows that have one of the reasons."""
        return self.total / max(self.rows, 1)

    def sentence(self, what: str, verb: str) -> str:
        """How many rows have one of the reasons, of how many."""
        if self.so_far:
            return f"{self.total:,} of the {count(self.rows, 'row')} read so far {verb}: {self.fraction:.2%}"
        return f"{count(self.total, what)} of {self.rows:,} {verb}: {self.fraction:.2%}"

    def question(self) -> list[str]:
        """The likely reason, if most rows are bad: a higher limit would make a store of almost nothing."""
        if 2 * self.reasons[NOT_TEXT] > self.rows:
            return [
                f"Check --column {self.column}: most values are not text. For another column, also choose a new --out.",
                "If they are lists of strings, add --join '\\n', which stands between the strings.",
                f"If they are lists of {{text, train}}, give --segments {self.column} in place of --column.",
                f"If they are lists of messages, give --messages {self.column} in place of --column.",
            ]
        if 2 * self.total <= self.rows:
            return []
        (reason, _), *_ = self.reasons.most_common(1)
        return [MOSTLY_BAD.get(reason, "Most documents are bad: look at some of them before you go on.")]

    def sufficient_limit(self) -> str:
        """A limit that is larger than the fraction, in percent."""
        return next(f"{percent:g}%" for percent in (*PERCENT, 100) if percent > 100 * self.fraction or percent == 100)


def too_many_bad(folder: Folder, counts: RowCounts, max_bad: float, log: str) -> RunFailed:
    """The error that ends a run with more bad documents than allowed."""
    return RunFailed(
        f"{counts.sentence('document', 'cannot be tokenized')}, more than --max-bad {100 * max_bad:g}%",
        *_by_reason(counts),
        f"named in     {folder.path(quarantine.QUARANTINE_FILE)}",
        *([f"             and {log}, for units that are not done"] if counts.so_far else []),
        advice=counts.question() or [_higher_limit(counts, max_bad)],
    )


def too_many_skipped(counts: RowCounts, max_skipped: float, first: list[str]) -> RunFailed:
    """The error that ends a run with more rows without text than allowed. `first` says where some of them are."""
    check = f"Check the column {counts.column}: most rows have no text there. For another one, choose a new --out."
    return RunFailed(
        f"{counts.sentence('row', 'without text')}, more than --max-skipped {100 * max_skipped:g}%",
        *_by_reason(counts),
        *(f"{'first' if not index else '':<12} {place}" for index, place in enumerate(first)),
        advice=[
            *([check] if 2 * counts.total > counts.rows else []),
            (
                "Committed work is kept. If these rows can be left out, run the same prepare with a higher limit:"
                f" --max-skipped {counts.sufficient_limit()}"
            ),
        ],
    )


def _by_reason(counts: RowCounts) -> list[str]:
    return [f"{number:>11,}  {reason}" for reason, number in counts.reasons.most_common(NAMED_FAILURES)]


def one_mask(folder: Folder, chat: Chat, *, is_all: bool) -> RunFailed:
    """The error that ends a run of whose tokens all, or none, would be trained on."""
    advice = (
        "To train on all tokens, use --train all and a new --out."
        if is_all
        else "Look at the roles of the messages: --roles NAME=assistant gives one another name. Use a new --out."
    )
    found = f"{'all' if is_all else 'no'} tokens of the store would be trained on"
    return RunFailed(found, f"run          {folder.root}", f"--train      {','.join(chat.train)}", advice=[advice])


def no_column(folder: Folder, job: Job, rows: int) -> RunFailed:
    """The error that ends a run whose rows all lack the column of the text."""
    return RunFailed(
        f"none of the {count(rows, 'row')} has the column {job.text_columns}",
        f"run          {folder.root}",
        advice=[ANOTHER_COLUMN],
    )


def _higher_limit(counts: RowCounts, max_bad: float) -> str:
    limit = f"{'' if max_bad else '--on-bad quarantine '}--max-bad {counts.sufficient_limit()}"
    return (
        "Committed work is kept. Repair the sources and use another --out, or run the same prepare with a higher limit:"
        f" {limit}"
    )


def bad_document(task: UnitTask, row: ExcludedRow, worker: Worker) -> Failed[UnitTask]:
    """The failure of a unit because of a bad document, where none is allowed."""
    error = BadDocument(
        f"a document {row.reason}",
        f"file         {task.file(row.where.source).path}",
        f"found at     {row_name(task.file(row.where.source), row.where.row)}",
        *([f"detail       {row.detail}"] if row.detail else []),
        "Skip it with --on-bad quarantine, or remove it.",
    )
    return Failed.of(task, error, worker)
