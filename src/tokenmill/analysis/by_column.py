"""Counts tokens by the values of a column of the sources (`--by`). Runs in a worker, except for adding up.

The worker reads that column of the sources again, and joins it with the part by row.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.analysis.count_parts import count_tokens, load_token_sizes
from tokenmill.analysis.lengths import Counts
from tokenmill.errors import SourceError, UsageError
from tokenmill.pipeline.plan import UnitTask
from tokenmill.pipeline.units import PREFETCH_FILES, unit_documents
from tokenmill.sources import prefetch
from tokenmill.sources.documents import Documents, ReadOptions, Slice, SourceFile
from tokenmill.sources.missing_column import NoColumn
from tokenmill.store.job import Job
from tokenmill.store.listed_parts import ListedParts
from tokenmill.store.part import PartContent

# The value shown for rows that have none.
NONE = "(none)"
# The value shown for JSON Lines rows whose value is not a string.
NOT_TEXT = "(not text)"
MAX_VALUES = 10_000
# Longer values are cut.
MAX_CHARACTERS = 200
ADVICE = "Name a column of text that the sources have: --by NAME."


class ValueCount(msgspec.Struct, frozen=True, array_like=True):
    """How much of a store has one value."""

    documents: int
    tokens: int
    bytes: int


@dataclass
class ValueCounts:
    """Counts by value. Beyond MAX_VALUES, the smallest values are added to `others`.

    Then `folded` is set: the count of a value may lack what went to `others` before. `missing` is the error text of the
    first source without the column. `column_exists` is set if any source has it.
    """

    counts: dict[str, ValueCount] = field(default_factory=dict)
    others: ValueCount = field(default_factory=lambda: ValueCount(0, 0, 0))
    folded: bool = False
    missing: tuple[str, ...] = ()
    column_exists: bool = False

    def add(self, value: str, count: ValueCount) -> None:
        """Add to the count of a value."""
        before = self.counts.get(value)
        self.counts[value] = count if before is None else _sum(before, count)

    def merge(self, other: ValueCounts) -> None:
        """Add other counts. Which values are folded depends on the order of the calls."""
        for value, count in other.counts.items():
            self.add(value, count)
        self.others = _sum(self.others, other.others)
        self.folded |= other.folded
        self.missing = self.missing or other.missing
        self.column_exists |= other.column_exists
        self.fold()

    def fold(self) -> None:
        """Beyond MAX_VALUES, keep only the largest half of them."""
        if len(self.counts) <= MAX_VALUES:
            return
        self.folded = True
        ranked = self.ranked()
        self.counts = dict(ranked[: MAX_VALUES // 2])
        for _, count in ranked[MAX_VALUES // 2 :]:
            self.others = _sum(self.others, count)

    def require_column(self) -> None:
        """Raise the error of the first source without the column, if no source has it."""
        if self.missing and not self.column_exists:
            raise SourceError(*self.missing)

    def ranked(self) -> list[tuple[str, ValueCount]]:
        """The values, most tokens first."""
        return sorted(self.counts.items(), key=lambda item: (-item[1].tokens, -item[1].documents, item[0]))


@dataclass(frozen=True, slots=True)
class CountValues:
    """Counts the documents of one part by the values of a column in their source rows."""

    job: Job
    parts: ListedParts
    column: str
    batch_bytes: int

    def __call__(self, task: UnitTask) -> ValueCounts:
        """Read the column of a unit, and count its part by the values."""
        _, content = self.parts.open(task.unit, content_too=False)
        token_sizes = load_token_sizes(self.parts.stores[0].directory, self.job)
        ignored = np.zeros(len(token_sizes.sizes), np.int64)
        document_bytes = count_tokens(self.parts.name, task.unit, content, ignored, token_sizes)
        join = _RowJoin(content, np.stack([np.ones_like(document_bytes), np.diff(content.offsets), document_bytes]))
        task = self._without_text_details(task)
        for index, file in enumerate(task.files):
            try:
                self._read(join, task, index)
            except NoColumn as error:  # other sources may have the column
                join.add_without_column(file, _about_column(error))
            except SourceError as error:
                raise _about_column(error) from error
        return join.finish()

    def _read(self, join: _RowJoin, task: UnitTask, index: int) -> None:
        """Read one file of the unit, and prefetch the next ones."""
        options = ReadOptions(self.column, None, self.batch_bytes, "quarantine")
        for file in task.files[index + 1 : index + 1 + PREFETCH_FILES]:
            prefetch(file, task.file_slice, options)
        rows = 0
        for file, documents in unit_documents(msgspec.structs.replace(task, files=(task.files[index],)), options):
            join.add(file, documents)
            rows += len(documents.rows)
        # Past the start of a JSON Lines file, a missing column raises no error, so rows do not prove the column there.
        is_checked = task.file_slice is None or task.file_slice.start == 0 or task.files[index].kind != "jsonl"
        join.counts.column_exists |= is_checked and rows > 0

    def _without_text_details(self, task: UnitTask) -> UnitTask:
        """The task without the plan's details about the text column. Raises UsageError for text files."""
        text = next((file for file in task.files if file.kind == "text"), None)
        if text is not None:
            raise UsageError("text files have no columns", f"file         {text.path}", "Leave out --by.")
        if task.file_slice is None:
            return task
        return msgspec.structs.replace(task, file_slice=Slice(task.file_slice.start, task.file_slice.stop))


class _RowJoin:
    """Joins the documents of a part with the values of their rows. Both come in the order of the sources.

    `figures` has the rows documents, tokens and bytes, and a column for each document.
    """

    def __init__(self, content: PartContent, figures: Counts) -> None:
        self._content = content
        self._figures = figures
        self._unmatched = np.ones(len(content.row), np.bool_)
        self.counts = ValueCounts()

    def add(self, file: SourceFile, documents: Documents) -> None:
        """Count the documents of some rows by their values."""
        first, last = np.searchsorted(self._content.source, [file.index, file.index + 1])
        rows = self._content.row[first:last]
        if not len(rows):
            return
        indexes = np.searchsorted(rows, documents.rows)
        matched = rows[np.minimum(indexes, len(rows) - 1)] == documents.rows
        indexes = indexes[matched] + first
        self._unmatched[indexes] = False
        self._count(documents.text.filter(pa.array(matched)), indexes)

    def _count(self, values: pa.LargeStringArray, indexes: npt.NDArray[np.int64]) -> None:
        short = pc.utf8_slice_codeunits(values, 0, MAX_CHARACTERS)
        encoded = short.dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        sums = [
            np.bincount(codes, weights=figure, minlength=len(encoded.dictionary)).tolist()
            for figure in self._figures[:, indexes]
        ]
        for value, *figures in zip(encoded.dictionary.to_pylist(), *sums, strict=True):
            self.counts.add(NONE if value is None else value, ValueCount(*map(int, figures)))
            self.counts.column_exists |= value is not None
        self.counts.fold()

    def add_without_column(self, file: SourceFile, error: SourceError) -> None:
        """Count the documents of a file that lacks the column, and keep the error."""
        of_file = self._unmatched & (self._content.source == file.index)
        if of_file.any():
            self._add_all(NONE, of_file)
        self._unmatched &= ~of_file
        self.counts.missing = self.counts.missing or (error.headline, *error.details)

    def finish(self) -> ValueCounts:
        """Count the rest as NOT_TEXT: readers skip rows whose value is not text."""
        if self._unmatched.any():
            self._add_all(NOT_TEXT, self._unmatched)
            self.counts.column_exists = True
        return self.counts

    def _add_all(self, value: str, chosen: npt.NDArray[np.bool_]) -> None:
        self.counts.add(value, ValueCount(*map(int, self._figures[:, chosen].sum(axis=1))))


def _sum(one: ValueCount, other: ValueCount) -> ValueCount:
    return ValueCount(one.documents + other.documents, one.tokens + other.tokens, one.bytes + other.bytes)


def _about_column(error: SourceError) -> SourceError:
    """A reader's error with the advice for --by in place of that for --column."""
    details = [ADVICE if line.endswith("--column NAME.") else line for line in error.details]
    return SourceError(error.headline, *details)
