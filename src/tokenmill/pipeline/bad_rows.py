"""The budget of bad rows: a run may hold a fraction of rows that cannot be tokenized, and no more."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow.compute as pc

from tokenmill.pipeline.messages import BadRowCounts, no_column, too_many_bad
from tokenmill.store.part import MISSING

if TYPE_CHECKING:
    from tokenmill.errors import RunFailed
    from tokenmill.pipeline.context import RunContext
    from tokenmill.pipeline.isolation import Isolation
    from tokenmill.pipeline.manifest import ManifestBuilder
    from tokenmill.pipeline.schedule import CommittedUnits
    from tokenmill.storage import Folder
    from tokenmill.store.job import Run

# A run is aborted early only when the bad rows are this many times over the limit.
EARLY_FACTOR = 2

# A row of a source without a row count is assumed to have at least this many bytes.
MIN_ROW_BYTES = 64


def refuse_missing_column(folder: Folder, run: Run, manifest: ManifestBuilder) -> None:
    """Raise RunFailed if there are rows, and all of them lack the column of the text."""
    if 0 < manifest.rows == manifest.skipped_reasons[MISSING]:
        raise no_column(folder, run.job, manifest.rows)


@dataclass
class BadRowBudget:
    """Compares the bad rows with `max_bad`, the fraction of all rows that may be bad."""

    context: RunContext
    manifest: ManifestBuilder
    isolation: Isolation
    committed: CommittedUnits
    max_bad: float

    def __post_init__(self) -> None:
        rows = self.context.frozen.plan["rows"]
        self._planned_rows: int | None = None if rows.null_count else pc.sum(rows).as_py() or 0

    def check(self) -> None:
        """Raise RunFailed if too many of all rows are bad, or if no row has the column of the text.

        The manifest has to know every unit.
        """
        refuse_missing_column(self.context.folder, self.context.frozen.run, self.manifest)
        if self.manifest.quarantined > self.max_bad * self.manifest.rows:
            raise self._exceeded(self.manifest.rows)

    def is_hopeless(self) -> bool:
        """Whether the limit will be passed by EARLY_FACTOR even if every row that is left is good."""
        bad = self.manifest.quarantined + len(self.isolation.excluded_rows())
        return bool(bad) and bad > EARLY_FACTOR * self.max_bad * self._max_rows()

    def exceeded_so_far(self) -> RunFailed:
        """The error for a run that is aborted early, with the rows that this call has read."""
        return self._exceeded(self.manifest.rows + self.isolation.rows_read(), so_far=True)

    def _exceeded(self, rows: int, *, so_far: bool = False) -> RunFailed:
        reasons = self.manifest.bad_reasons() + Counter(row.reason for row in self.isolation.excluded_rows())
        counts = BadRowCounts(reasons, rows, self.context.frozen.run.job.column, so_far)
        return too_many_bad(self.context.folder, counts, self.max_bad, self.context.events.log_path)

    def _max_rows(self) -> float:
        """An upper bound for the rows of all units: exact where the sources have row counts."""
        if self._planned_rows is not None:
            return self._planned_rows
        return self.manifest.rows + self.committed.planned_bytes_left() / MIN_ROW_BYTES
