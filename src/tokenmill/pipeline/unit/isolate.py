"""Tokenizes a unit that has killed its workers one document at a time, so that the next death names the document.

A document is blamed only if it kills a worker that does nothing else: the reference engine encodes it alone. If that
succeeds, its tokens come from the reference engine, so a document that kills only the fast engine is not lost. Runs in
a worker. `pipeline/driving/isolation.py` decides what to try next.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from tokenmill.errors import MemoryShortage, SourceError
from tokenmill.humanize import size
from tokenmill.pipeline.unit.commit import Commit, Committed, done_names, report_existing
from tokenmill.pipeline.unit.documents import (
    WorkerLimits,
    document_tokens,
    left_out,
    loaded_tokenizer,
    needed_bytes,
    rendered,
    unit_rows,
    vocabulary_content,
)
from tokenmill.pipeline.unit.part_builder import PartBuilder
from tokenmill.pipeline.unit.plan import Position, UnitTask
from tokenmill.sources.bad_rows import bad_row
from tokenmill.sources.documents import BadRow, Documents, SourceFile
from tokenmill.sources.line_numbers import place
from tokenmill.storage import folder_at
from tokenmill.store.job import Job
from tokenmill.tokenization.tokenizer import Tokenizer

# The name under which a Tokenizer takes the reference engine of its kind.
REFERENCE = "reference"


class RowId(msgspec.Struct, frozen=True, array_like=True):
    """A row of a source."""

    source: int
    row: int


class ExcludedRow(msgspec.Struct, frozen=True, array_like=True):
    """A row that is excluded from its unit, and why."""

    where: RowId
    reason: str
    detail: str


class IsolatedUnit(msgspec.Struct, frozen=True):
    """A unit in isolation, with what is known of its rows.

    Attributes:
        task: The unit.
        suspect: The row to encode alone now.
        cleared_rows: Rows that were encoded alone without trouble. The reference engine encodes them.
        excluded: Rows that are to blame.
        unexplained_deaths: How often the unit died while no row was being encoded.
        memory_deaths: How often in a row memory ran out at a row that was not to blame.
    """

    task: UnitTask
    suspect: RowId | None = None
    cleared_rows: tuple[RowId, ...] = ()
    excluded: tuple[ExcludedRow, ...] = ()
    unexplained_deaths: int = 0
    memory_deaths: int = 0


@dataclass(frozen=True, slots=True)
class Isolate:
    """The function that tokenizes a unit document by document, or encodes its suspect alone (and returns None)."""

    directory: str
    job: Job
    engine: str
    limits: WorkerLimits
    reference_version: str = ""
    recheck: bool = False

    def __call__(self, unit: IsolatedUnit) -> Committed | None:
        """Publish the unit without its excluded rows, or encode its suspect and return None."""
        Position("begin").mark()
        if unit.suspect is not None:
            self._try_alone(unit.task, unit.suspect)
            return None
        folder = folder_at(self.directory)
        if all(folder.exists(name) for name in done_names(unit.task.unit, recheck=self.recheck)):
            return report_existing(folder, unit.task.unit, self.engine)
        tokenizer = loaded_tokenizer(self.directory, self.job, self.engine, self.reference_version)
        builder = tokenizer.retry_with_reference(lambda: self._encode(unit, tokenizer))
        kept = builder.read_kept(self.limits)
        Position("write").mark()
        return Commit(folder, builder, self.recheck, kept).by(tokenizer)()

    def _try_alone(self, task: UnitTask, suspect: RowId) -> None:
        tokenizer = loaded_tokenizer(self.directory, self.job, REFERENCE, self.reference_version)
        for file, rows in unit_rows(task, self.limits.read_options(self.job, sparing=True)):
            matches = np.flatnonzero(rows.rows == suspect.row)
            if file.index == suspect.source and len(matches):
                row = rows.slice(int(matches[0]), int(matches[0]) + 1)
                self._require_memory(file, suspect.row, row)
                documents = rendered(self.directory, file, row, self.job, self.limits)
                self._require_memory(file, suspect.row, documents)
                document_tokens(file, documents, self.job, tokenizer, self.limits)
                return
        raise SourceError("a row of a source cannot be found again", f"row          {suspect.row}")

    def _require_memory(self, file: SourceFile, row: int, documents: Documents) -> None:
        """Fail the unit if the memory budget is smaller than what the documents of a row may take.

        Only a document that takes more than that is to blame for a lack of memory. So the rows that a store excludes do
        not depend on the machine.
        """
        needed, available = needed_bytes(self.job, documents.text_bytes()), self.limits.single_worker_bytes
        if available is not None and needed > available:
            raise MemoryShortage(
                f"a document of {size(documents.text_bytes())} needs {size(needed)} of memory, and a worker may hold "
                f"{size(available)}",
                f"file         {file.path}",
                f"found at     {place(file.kind, row)}",
                "Run the same command again with a larger --memory.",
            )

    def _encode(self, unit: IsolatedUnit, tokenizer: Tokenizer) -> PartBuilder:
        builder = PartBuilder(self.job, unit.task, self.limits.with_text)
        excluded = {row.where: row for row in unit.excluded}
        reference = tokenizer
        if unit.cleared_rows:
            content = vocabulary_content(self.directory, self.job)
            reference = Tokenizer(self.job.encoder, content, REFERENCE).load()
        options, lists = self.limits.read_options(self.job, sparing=True), left_out(self.directory, self.job)
        for file, rows in unit_rows(unit.task, options, lists):
            builder.skip(file, rows)
            present = rows.without_nulls()
            for index in range(len(present.rows)):
                row = present.slice(index, index + 1)
                where = RowId(file.index, int(row.rows[0]))
                if where in excluded:
                    builder.skip_bad(file, _bad_row(row, excluded[where]))
                    continue
                engine = reference if where in unit.cleared_rows else tokenizer
                documents = rendered(self.directory, file, row, self.job, self.limits)
                builder.skip(file, documents)
                builder.add(file, documents, document_tokens(file, documents, self.job, engine, self.limits))
            builder.fold()
            tokenizer.trim(self.limits.worker_bytes)
        return builder


def _bad_row(document: Documents, excluded: ExcludedRow) -> BadRow:
    raw: bytes = document.text.cast(pa.large_binary())[0].as_py()
    return bad_row(excluded.where.row, excluded.reason, excluded.detail, raw)
