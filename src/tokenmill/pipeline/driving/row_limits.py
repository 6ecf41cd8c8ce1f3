"""The limits for rows that do not become documents: the bad ones, and those without text.

A run may have a fraction of each, and no more. Rows that an option leaves out are not counted.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass

import pyarrow.compute as pc

from tokenmill.chat.spec import ALL
from tokenmill.errors import RunFailed
from tokenmill.pipeline.driving.context import RunContext
from tokenmill.pipeline.driving.isolation import Isolation
from tokenmill.pipeline.driving.manifest import ManifestBuilder
from tokenmill.pipeline.driving.schedule import CommittedUnits
from tokenmill.pipeline.planning.freeze import FrozenRun
from tokenmill.pipeline.unit.messages import RowCounts, no_column, one_mask, too_many_bad, too_many_skipped
from tokenmill.sources import file_at
from tokenmill.sources.line_numbers import row_place
from tokenmill.storage import Folder
from tokenmill.store import event_log
from tokenmill.store.part import INTENDED, MISSING, WITHOUT_TEXT, read_summary

# A run is aborted early only when the rows are this many times over the limit.
EARLY_FACTOR = 2

# A row of a source without a row count is assumed to have at least this many bytes.
MIN_ROW_BYTES = 64

SHOWN_ROWS = 3

# So many rows without text do not fail a run whose rows mostly have text, unless the limit is 0.
FEW_SKIPPED = 10


@dataclass(frozen=True, slots=True)
class RowLimits:
    """The fractions of rows that may be bad, and that may be without text."""

    max_bad: float
    max_skipped: float

    def check(self, folder: Folder, frozen: FrozenRun, manifest: ManifestBuilder) -> None:
        """Raise RunFailed if too many rows are bad or without text, or if none has the column of the text.

        The manifest has to know every unit.
        """
        if 0 < manifest.rows == manifest.skipped_reasons[MISSING]:
            raise no_column(folder, frozen.run.job, manifest.rows)
        rows = manifest.rows - _left_out(manifest)
        if manifest.bad > self.max_bad * rows:
            raise self.too_many_bad(folder, frozen, manifest.bad_reasons(), rows)
        if self._has_too_many_skipped(manifest.without_text, rows):
            raise self.too_many_skipped(folder, frozen, manifest, rows)
        _refuse_one_mask(folder, frozen, manifest)

    def _has_too_many_skipped(self, skipped: int, rows: int) -> bool:
        """Whether rows without text are too many. A few are not, unless they are most of a small corpus."""
        is_small = self.max_skipped > 0 and skipped <= FEW_SKIPPED and 2 * skipped <= rows
        return skipped > self.max_skipped * rows and not is_small

    def too_many_bad(
        self, folder: Folder, frozen: FrozenRun, reasons: Counter[str], rows: int, *, so_far: bool = False
    ) -> RunFailed:
        """The error for rows that are bad."""
        counts = RowCounts(reasons, rows, frozen.run.job.column, so_far)
        return too_many_bad(folder, counts, self.max_bad, event_log.path(folder))

    def too_many_skipped(
        self, folder: Folder, frozen: FrozenRun, manifest: ManifestBuilder, rows: int, *, so_far: bool = False
    ) -> RunFailed:
        """The error for rows without text, with the first of them."""
        reasons = Counter({reason: manifest.skipped_reasons[reason] for reason in WITHOUT_TEXT})
        counts = RowCounts(+reasons, rows, frozen.run.job.text_columns, so_far)
        return too_many_skipped(counts, self.max_skipped, _first_rows(folder, frozen, manifest))


def _refuse_one_mask(folder: Folder, frozen: FrozenRun, manifest: ManifestBuilder) -> None:
    """Raise RunFailed if all tokens of conversations are trained on, and that was not asked for, or none is."""
    job = frozen.run.job
    if job.chat is None:
        return
    documents, trained, tokens = manifest.trained(has_begin=job.begin is not None)
    if documents and (not trained or (trained == tokens and job.chat.train != (ALL,))):
        raise one_mask(folder, job.chat, is_all=bool(trained))


def _left_out(manifest: ManifestBuilder) -> int:
    """The number of rows that options leave out."""
    return sum(manifest.skipped_reasons[reason] for reason in INTENDED - WITHOUT_TEXT)


def _first_rows(folder: Folder, frozen: FrozenRun, manifest: ManifestBuilder) -> list[str]:
    """Where the first rows without text are."""
    units = manifest.units_without_text()
    summaries = (read_summary(folder, unit, frozen.head) for unit in units)
    skipped = (entry for summary in summaries for entry in summary.skipped if entry.reason in WITHOUT_TEXT)
    rows = [(file_at(frozen.sources, entry.source), entry) for entry in itertools.islice(skipped, SHOWN_ROWS)]
    return [f"{file.path}, {row_place(file, entry.first)}: {entry.reason}" for file, entry in rows]


@dataclass
class RowBudget:
    """Compares the rows of a run with the limits, while units are committed."""

    context: RunContext
    manifest: ManifestBuilder
    isolation: Isolation
    committed: CommittedUnits
    limits: RowLimits

    def __post_init__(self) -> None:
        rows = self.context.frozen.plan["rows"]
        self._planned_rows: int | None = None if rows.null_count else pc.sum(rows).as_py() or 0

    def check(self) -> None:
        """Raise RunFailed if a limit is passed. The manifest has to know every unit."""
        self.limits.check(self.context.folder, self.context.frozen, self.manifest)

    def is_hopeless(self) -> bool:
        """Whether a limit will be passed by EARLY_FACTOR even if every row that is left is a document."""
        skipped = self.manifest.without_text
        return self._has_too_many_bad() or (skipped > FEW_SKIPPED and self._is_beyond(skipped, self.limits.max_skipped))

    def exceeded_so_far(self) -> RunFailed:
        """The error for a run that is aborted early, with the rows that this call has read."""
        folder, frozen = self.context.folder, self.context.frozen
        rows = self.manifest.rows - _left_out(self.manifest) + self.isolation.rows_read()
        if not self._has_too_many_bad():
            return self.limits.too_many_skipped(folder, frozen, self.manifest, rows, so_far=True)
        reasons = self.manifest.bad_reasons() + Counter(row.reason for row in self.isolation.excluded_rows())
        return self.limits.too_many_bad(folder, frozen, reasons, rows, so_far=True)

    def _has_too_many_bad(self) -> bool:
        bad = self.manifest.bad + len(self.isolation.excluded_rows())
        return self._is_beyond(bad, self.limits.max_bad)

    def _is_beyond(self, rows: int, limit: float) -> bool:
        return bool(rows) and rows > EARLY_FACTOR * limit * self._max_rows()

    def _max_rows(self) -> float:
        """An upper bound for the rows of all units: exact where the sources have row counts."""
        if self._planned_rows is not None:
            return self._planned_rows
        return self.manifest.rows + self.committed.planned_bytes_left() / MIN_ROW_BYTES
