"""Count tokens by the values of a column of the sources. Runs in a worker, except for adding up.

The sources are read again, that column only, and joined with the part by row.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.analysis.count_parts import count_tokens, pieces_of
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

NONE = "(none)"
"""What stands for a row that has no value."""

NOT_TEXT = "(not text)"
"""What stands for a row whose value is a number or the like, in JSON Lines."""

MAX_VALUES = 10_000
MAX_CHARACTERS = 200
"""What is beyond that is cut off a value."""

ADVICE = "Name a column of text that the sources have: --by NAME."


class ValueCount(msgspec.Struct, frozen=True, array_like=True):
    """How much of a store has one value."""

    documents: int
    tokens: int
    bytes: int


@dataclass
class ValueCounts:
    """The values of a column. Of more than there is room for, the smallest are counted together in `others`.

    Then `folded` tells that what a value has may have been counted there before it grew. `missing` is what was said of
    the first source without the column, `is_known` whether any has it.
    """

    counts: dict[str, ValueCount] = field(default_factory=dict)
    others: ValueCount = field(default_factory=lambda: ValueCount(0, 0, 0))
    folded: bool = False
    missing: tuple[str, ...] = ()
    is_known: bool = False

    def add(self, value: str, count: ValueCount) -> None:
        """Count some more of a value."""
        known = self.counts.get(value)
        self.counts[value] = count if known is None else _sum(known, count)

    def join(self, other: ValueCounts) -> None:
        """Take over what was counted elsewhere. What is folded depends on the order in which this is done."""
        for value, count in other.counts.items():
            self.add(value, count)
        self.others = _sum(self.others, other.others)
        self.folded |= other.folded
        self.missing = self.missing or other.missing
        self.is_known |= other.is_known
        self.fold()

    def fold(self) -> None:
        """Keep the largest only, if there are too many."""
        if len(self.counts) <= MAX_VALUES:
            return
        self.folded = True
        ranked = self.ranked()
        self.counts = dict(ranked[: MAX_VALUES // 2])
        for _, count in ranked[MAX_VALUES // 2 :]:
            self.others = _sum(self.others, count)

    def require_column(self) -> None:
        """Raise what was said of the first source without the column, if all are."""
        if self.missing and not self.is_known:
            raise SourceError(*self.missing)

    def ranked(self) -> list[tuple[str, ValueCount]]:
        """The values, that with most tokens first."""
        return sorted(self.counts.items(), key=lambda item: (-item[1].tokens, -item[1].documents, item[0]))


@dataclass(frozen=True, slots=True)
class CountValues:
    """The function that counts the documents of one part by the values that a column has in their rows."""

    directory: str
    job: Job
    parts: ListedParts
    column: str
    batch_bytes: int

    def __call__(self, task: UnitTask) -> ValueCounts:
        """Read the column of a unit, and count its part by it."""
        _, content = self.parts.open(task.unit, content_too=False)
        pieces = pieces_of(self.directory, self.job)
        ignored = np.zeros(len(pieces.sizes), np.int64)
        written = count_tokens(self.directory, task.unit, content, ignored, pieces)
        joined = _Join(content, np.stack([np.ones_like(written), np.diff(content.offsets), written]))
        task = self._other_column(task)
        for place in range(len(task.files)):
            try:
                self._read(joined, task, place)
            except NoColumn as error:  # rows of other sources may have it
                joined.lacks(task.files[place], _about_column(error))
            except SourceError as error:
                raise _about_column(error) from error
        return joined.finish()

    def _read(self, joined: _Join, task: UnitTask, place: int) -> None:
        """Read one file of the unit, while those to come are fetched."""
        options = ReadOptions(self.column, None, self.batch_bytes, "quarantine")
        for ahead in task.files[place + 1 : place + 1 + PREFETCH_FILES]:
            prefetch(ahead, task.file_slice, options)
        is_told = task.file_slice is None or task.file_slice.start == 0 or task.files[place].kind != "jsonl"
        rows = 0
        for file, documents in unit_documents(msgspec.structs.replace(task, files=(task.files[place],)), options):
            joined.take(file, documents)
            rows += len(documents.rows)
        joined.found.is_known |= is_told and rows > 0  # further on in JSON Lines, a missing column is no error

    def _other_column(self, task: UnitTask) -> UnitTask:
        """The task without what the plan knows of the column of text."""
        text = next((file for file in task.files if file.kind == "text"), None)
        if text is not None:
            raise UsageError("text files have no columns", f"file         {text.path}", "Leave out --by.")
        if task.file_slice is None:
            return task
        return msgspec.structs.replace(task, file_slice=Slice(task.file_slice.start, task.file_slice.stop))


class _Join:
    """The documents of a part, waiting for the values of their rows. Both come in the order of the sources."""

    def __init__(self, content: PartContent, figures: Counts) -> None:
        self._content = content
        self._figures = figures
        self._left = np.ones(len(content.row), np.bool_)
        self.found = ValueCounts()

    def take(self, file: SourceFile, documents: Documents) -> None:
        """Find the documents of some rows."""
        first, last = np.searchsorted(self._content.source, [file.index, file.index + 1])
        rows = self._content.row[first:last]
        if not len(rows):
            return
        places = np.searchsorted(rows, documents.rows)
        known = rows[np.minimum(places, len(rows) - 1)] == documents.rows
        places = places[known] + first
        self._left[places] = False
        self._count(documents.text.filter(pa.array(known)), places)

    def _count(self, values: pa.LargeStringArray, places: npt.NDArray[np.int64]) -> None:
        short = pc.utf8_slice_codeunits(values, 0, MAX_CHARACTERS)
        encoded = short.dictionary_encode(null_encoding="encode")
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        sums = [
            np.bincount(codes, weights=figure, minlength=len(encoded.dictionary)) for figure in self._figures[:, places]
        ]
        for value, *figures in zip(encoded.dictionary.to_pylist(), *(each.tolist() for each in sums), strict=True):
            self.found.add(NONE if value is None else value, ValueCount(*map(int, figures)))
            self.found.is_known |= value is not None
        self.found.fold()

    def lacks(self, file: SourceFile, error: SourceError) -> None:
        """No row of a file has a value."""
        of_file = self._left & (self._content.source == file.index)
        if of_file.any():
            self.found.add(NONE, ValueCount(*map(int, self._figures[:, of_file].sum(axis=1))))
        self._left &= ~of_file
        self.found.missing = self.found.missing or (error.headline, *error.details)

    def finish(self) -> ValueCounts:
        """What was found. Rows without a value that is text have not been among those that were read."""
        if self._left.any():
            self.found.add(NOT_TEXT, ValueCount(*map(int, self._figures[:, self._left].sum(axis=1))))
            self.found.is_known = True
        return self.found


def _sum(one: ValueCount, other: ValueCount) -> ValueCount:
    return ValueCount(one.documents + other.documents, one.tokens + other.tokens, one.bytes + other.bytes)


def _about_column(error: SourceError) -> SourceError:
    """What a reader says of the column of text, as it should be said of another one."""
    details = [ADVICE if line.endswith("--column NAME.") else line for line in error.details]
    return SourceError(error.headline, *details)
