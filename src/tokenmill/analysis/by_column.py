"""Counts tokens by the values of a column of the sources (`--by`). Runs in a worker, except for adding up.

The worker reads the column from the kept columns of the store, or from the sources again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.analysis.count_parts import count_tokens, load_token_sizes
from tokenmill.analysis.lengths import Counts
from tokenmill.errors import SourceError, UsageError
from tokenmill.pipeline.unit.columns import UnitColumns, unit_columns
from tokenmill.pipeline.unit.plan import UnitTask
from tokenmill.sources.documents import ReadOptions
from tokenmill.sources.missing_column import OTHER_COLUMN
from tokenmill.sources.plain_values import TEXT, host
from tokenmill.storage import folder_at
from tokenmill.store.job import Job
from tokenmill.store.kept import read_kept
from tokenmill.store.listed_parts import ListedParts
from tokenmill.store.part import PartContent, PartSummary, erased_changes

# The value shown for rows that have none.
NONE = "(none)"
# Before the name of a column of URLs: their hosts are counted.
HOST_PREFIX = "host:"
MAX_VALUES = 10_000
# Longer values are cut.
MAX_CHARACTERS = 200
ADVICE = "Name a column that the sources have: --by NAME."


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
class ColumnChoice:
    """What `--by` counts: the values of a column, or with `host:` before its name the hosts of its URLs."""

    name: str
    by_host: bool = False

    @classmethod
    def parse(cls, text: str) -> ColumnChoice:
        """The choice that a text names. A column whose name begins with `host:` cannot be counted."""
        name = text.removeprefix(HOST_PREFIX)
        if not name:
            raise UsageError(f"--by {text!r} names no column", "Give a name, such as language or host:url.")
        return cls(name, name != text)

    def texts(self, values: pa.Table) -> pa.LargeStringArray:
        """The values to count, as text."""
        column = values[self.name].combine_chunks()
        return host(column) if self.by_host else column.cast(TEXT)


@dataclass(frozen=True, slots=True)
class CountValues:
    """Counts the documents of one part by the values of a column: a kept one, or one of their source rows."""

    job: Job
    parts: ListedParts
    column: ColumnChoice
    batch_bytes: int
    is_kept: bool

    def __call__(self, task: UnitTask) -> ValueCounts:
        """Read the column of a unit, and count its part by the values."""
        summary, content = self.parts.open(task.unit, content_too=False)
        directory = self.parts.stores[0].directory
        token_sizes = load_token_sizes(directory, self.job)
        ignored = np.zeros(len(token_sizes.sizes), np.int64)
        document_bytes = count_tokens(directory, task.unit, content, ignored, token_sizes)
        found = self._kept(directory, summary) if self.is_kept else self._read(task, content)
        counts = ValueCounts(column_exists=found.exists)
        if found.missing is not None:
            counts.missing = _about_column(found.missing).args
        figures = np.stack([np.ones_like(document_bytes), np.diff(content.offsets), document_bytes])
        _count(counts, self.column.texts(found.values), figures)
        return counts

    def _kept(self, directory: str, summary: PartSummary) -> UnitColumns:
        head, changes = self.parts.stores[0].head, erased_changes(summary)
        values = read_kept(folder_at(directory), summary, [self.column.name], head)
        return UnitColumns(values if changes is None else values.filter(pa.array(changes == 0)), exists=True)

    def _read(self, task: UnitTask, content: PartContent) -> UnitColumns:
        options = ReadOptions(self.column.name, None, self.batch_bytes, "quarantine")
        try:
            return unit_columns(task, (self.column.name,), content.source, content.row, options)
        except SourceError as error:
            raise _about_column(error) from error


def _count(counts: ValueCounts, values: pa.LargeStringArray, figures: Counts) -> None:
    """Add the documents with each value. `figures` has the rows documents, tokens and bytes."""
    short = pc.utf8_slice_codeunits(values, 0, MAX_CHARACTERS)
    encoded = short.dictionary_encode(null_encoding="encode")
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    sums = [np.bincount(codes, weights=figure, minlength=len(encoded.dictionary)).tolist() for figure in figures]
    for value, *sizes in zip(encoded.dictionary.to_pylist(), *sums, strict=True):
        counts.add(NONE if value is None else value, ValueCount(*map(int, sizes)))
    counts.fold()


def _sum(one: ValueCount, other: ValueCount) -> ValueCount:
    return ValueCount(one.documents + other.documents, one.tokens + other.tokens, one.bytes + other.bytes)


def _about_column(error: SourceError) -> SourceError:
    """A reader's error with the advice for --by in place of that for --column."""
    details = [ADVICE if line == OTHER_COLUMN else line for line in error.details]
    return SourceError(error.headline, *details)
