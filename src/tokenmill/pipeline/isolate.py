"""Do a unit that has killed its workers, one document at a time, so that the next death names the document.

A document is blamed only if it kills a worker that has nothing else to do: it is tried alone, by the reference engine.
If that goes well, its tokens are taken from there; so what kills the fast engine only is not lost. Everything here
happens inside a worker; the one who gives out the work draws the conclusions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa

from tokenmill.errors import MemoryShortage, SourceError
from tokenmill.humanize import size
from tokenmill.pipeline.commit import Commit, Committed, done_names, found
from tokenmill.pipeline.part_builder import PartBuilder
from tokenmill.pipeline.plan import UnitTask
from tokenmill.pipeline.position import Position
from tokenmill.pipeline.units import (
    WorkerLimits,
    document_tokens,
    loaded_tokenizer,
    needed_bytes,
    unit_documents,
    vocabulary_content,
)
from tokenmill.sources.bad_rows import bad_row
from tokenmill.sources.documents import BadRow, Documents, SourceFile
from tokenmill.storage import folder_at
from tokenmill.store.job import Job
from tokenmill.tokenizers.tokenizer import Tokenizer

REFERENCE = "reference"


class RowId(msgspec.Struct, frozen=True, array_like=True):
    """A row of a source."""

    source: int
    row: int


class ExcludedRow(msgspec.Struct, frozen=True, array_like=True):
    """A row that is left out, and why."""

    where: RowId
    reason: str
    detail: str


class IsolatedUnit(msgspec.Struct, frozen=True):
    """A unit in isolation, with what is known of its rows.

    `suspect` is the row to be tried alone now; the rows in `apart` have passed that, and go to the reference engine.
    """

    task: UnitTask
    suspect: RowId | None = None
    cleared_rows: tuple[RowId, ...] = ()
    excluded: tuple[ExcludedRow, ...] = ()
    unexplained_deaths: int = 0
    memory_deaths: int = 0


@dataclass(frozen=True, slots=True)
class Isolate:
    """The function that does a unit document by document, or tries its suspect alone (and then gives None)."""

    directory: str
    job: Job
    engine: str
    limits: WorkerLimits
    reference_version: str = ""
    recheck: bool = False

    def __call__(self, unit: IsolatedUnit) -> Committed | None:
        """Publish the unit without the rows that are left out; or return, alive, after the suspect was encoded."""
        Position("begin").mark()
        if unit.suspect is not None:
            self._try_alone(unit.task, unit.suspect)
            return None
        folder = folder_at(self.directory)
        if all(folder.exists(name) for name in done_names(unit.task.unit, recheck=self.recheck)):
            return found(folder, unit.task.unit, self.engine)
        tokenizer = loaded_tokenizer(self.directory, self.job, self.engine, self.reference_version)
        builder = tokenizer.retry_with_reference(lambda: self._encode(unit, tokenizer))
        Position("write").mark()
        return Commit(folder, builder, self.recheck).by(tokenizer)()

    def _try_alone(self, task: UnitTask, suspect: RowId) -> None:
        tokenizer = loaded_tokenizer(self.directory, self.job, REFERENCE, self.reference_version)
        for file, documents in unit_documents(task, self.limits.read_options(self.job, sparing=True)):
            place = np.flatnonzero(documents.rows == suspect.row)
            if file.index == suspect.source and len(place):
                document = _at(documents, int(place[0]))
                self._require_memory(file, document)
                document_tokens(file, document, self.job, tokenizer, self.limits)
                return
        raise SourceError("a row of a source cannot be found again", f"row          {suspect.row}")

    def _require_memory(self, file: SourceFile, document: Documents) -> None:
        """Fail the unit if the memory budget is smaller than what a document of this size may take.

        Only a document that takes more than that is to blame for a lack of memory; so the rows that a store leaves out
        do not depend on the machine.
        """
        needed, available = needed_bytes(self.job, document.text_bytes()), self.limits.single_worker_bytes
        if available is not None and needed > available:
            raise MemoryShortage(
                f"a document of {size(document.text_bytes())} needs {size(needed)} of memory, and a worker may hold "
                f"{size(available)}",
                f"file         {file.path}",
                f"row          {document.rows[0]}",
                "Run the same command again with a larger --memory.",
            )

    def _reference(self) -> Tokenizer:
        return Tokenizer(self.job.tokenizer, vocabulary_content(self.directory, self.job), REFERENCE).ready()

    def _encode(self, unit: IsolatedUnit, tokenizer: Tokenizer) -> PartBuilder:
        builder = PartBuilder(self.job, unit.task, self.limits.with_text)
        left_out = {verdict.where: verdict for verdict in unit.excluded}
        reference = self._reference() if unit.cleared_rows else tokenizer
        for file, documents in unit_documents(unit.task, self.limits.read_options(self.job, sparing=True)):
            builder.leave_out(file, documents)
            for document in _one_by_one(documents.without_nulls()):
                where = RowId(file.index, int(document.rows[0]))
                if where in left_out:
                    builder.leave_out_bad(file, _bad_row(document, left_out[where]))
                    continue
                engine = reference if where in unit.cleared_rows else tokenizer
                builder.add(file, document, document_tokens(file, document, self.job, engine, self.limits))
            builder.fold()
            tokenizer.trim(self.limits.worker_bytes)
        return builder


def _one_by_one(documents: Documents) -> Iterator[Documents]:
    for place in range(len(documents.rows)):
        yield _at(documents, place)


def _at(documents: Documents, place: int) -> Documents:
    return Documents(documents.text.slice(place, 1), documents.rows[place : place + 1])


def _bad_row(document: Documents, verdict: ExcludedRow) -> BadRow:
    raw: bytes = document.text.cast(pa.large_binary())[0].as_py()
    return bad_row(verdict.where.row, verdict.reason, verdict.detail, raw)
