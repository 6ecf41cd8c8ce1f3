"""Put the manifest together: from what workers tell, and from the parts themselves where earlier calls wrote them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill import layout, logbook, quarantine
from tokenmill.api.trouble import exit_code_of_failures, obituary, raised_again
from tokenmill.errors import CorruptStore, RunFailed, StoreError
from tokenmill.executors.outcomes import Done, Failed
from tokenmill.part import NULL, PartSummary, part_name
from tokenmill.work import Summarise

if TYPE_CHECKING:
    from tokenmill.executors.outcomes import Executor
    from tokenmill.storage import Folder

SUMMARIES_AT_ONCE = 1000


class ManifestBuilder:
    """Collects summaries in columns, so that a million of them stay small."""

    def __init__(self, folder: Folder, run: layout.Run) -> None:
        self.skipped_reasons: Counter[str] = Counter()
        self.rows = self.quarantined = 0
        self._folder = folder
        self._run = run
        self._digest = run.job.digest()
        self._tables: list[pa.Table] = []
        self._loose: list[tuple[int | str, ...]] = []

    def add(self, summary: PartSummary) -> None:
        """Take the summary of one part."""
        if summary.job != self._digest:
            path = self._folder.path(part_name(summary.unit))
            raise CorruptStore(f"part {summary.unit} belongs to another job", f"file         {path}")
        for skipped in summary.skipped:
            self.skipped_reasons[skipped.reason] += skipped.rows
        self.rows += summary.documents + summary.skipped_rows
        self.quarantined += summary.quarantined_rows
        self._loose.append(layout.manifest_row(summary))
        if len(self._loose) >= SUMMARIES_AT_ONCE:
            self._pack()

    def bad_reasons(self) -> Counter[str]:
        """How many rows are in quarantine, for each reason."""
        return Counter({reason: rows for reason, rows in self.skipped_reasons.items() if reason != NULL})

    def add_from_parts(self, executor: Executor, units: npt.NDArray[np.int64]) -> None:
        """Take the summaries of parts that earlier calls committed."""
        chunks = np.split(units, range(SUMMARIES_AT_ONCE, len(units), SUMMARIES_AT_ONCE)) if len(units) else []
        items = (tuple(chunk.tolist()) for chunk in chunks)
        for outcome in executor.run(Summarise(self._folder.root), items):
            if isinstance(outcome, Done):
                for summary in outcome.value:
                    self.add(summary)
            elif isinstance(outcome, Failed):
                raise raised_again(outcome, CorruptStore if outcome.kind == CorruptStore.__name__ else StoreError)
            elif outcome.final:
                code = exit_code_of_failures([outcome])
                reason = obituary(outcome, "parts of the store")
                raise RunFailed("parts of the store could not be read", reason, exit_code=code)

    def adopt(self, manifest: pa.Table) -> None:
        """Take the manifest that is there in place of all that was collected."""
        skipped, self.quarantined, documents = (
            int(np.sum(manifest[name].to_numpy())) for name in ("skipped", "quarantined", "documents")
        )
        self.rows = documents + skipped
        bad = quarantine.reasons(self._folder) if self.quarantined else Counter()
        nulls = Counter({NULL: skipped - self.quarantined} if skipped > self.quarantined else {})
        self.skipped_reasons = bad + nulls
        self._tables, self._loose = [manifest], []

    def publish(self) -> pa.Table:
        """Write the manifest, if it is not there: from now on the store is complete."""
        self._pack()
        manifest = pa.concat_tables(self._tables).sort_by("unit")
        if not np.array_equal(manifest["unit"].to_numpy(), np.arange(self._run.units)):
            raise CorruptStore("the parts found are not those of the plan", f"run          {self._folder.root}")
        if not self._folder.exists(layout.MANIFEST):
            self._folder.settle(layout.PARTS)
            layout.publish_table(self._folder, layout.MANIFEST, manifest)
            logbook.append(self._folder, [logbook.line("complete", units=self._run.units)])
        return manifest

    def _pack(self) -> None:
        self._tables.append(layout.manifest_columns(self._loose))
        self._loose = []
