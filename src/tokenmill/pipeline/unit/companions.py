"""Builds the parts of several stores from one read: the same documents, encoded by the tokenizer of each store.

The run of the first store reads the documents. The stores of the other tokenizers are its companions. Nothing depends
on them: a companion's unit that could not be made here is made again by the run of its own store, which follows and
reports what is wrong.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenmill.errors import EngineMismatch
from tokenmill.pipeline.unit.commit import Commit, Committed, done_names
from tokenmill.pipeline.unit.documents import document_tokens, loaded_tokenizer
from tokenmill.pipeline.unit.part_builder import PartBuilder
from tokenmill.storage import folder_at
from tokenmill.store.mismatch import MismatchRecord, publish_mismatch

if TYPE_CHECKING:
    import pyarrow as pa

    from tokenmill.pipeline.unit.documents import WorkerLimits
    from tokenmill.pipeline.unit.plan import UnitTask
    from tokenmill.sources.documents import Documents, SourceFile
    from tokenmill.store.job import Job


@dataclass(frozen=True, slots=True)
class CompanionTarget:
    """What a worker needs to make the parts of a companion (see `Tokenize`)."""

    directory: str
    job: Job
    engine: str
    limits: WorkerLimits
    reference_version: str


class CompanionPart:
    """The part of a companion. The first error ends it."""

    def __init__(self, target: CompanionTarget, task: UnitTask, tokenizers: int) -> None:
        self._target = target
        self._folder = folder_at(target.directory)
        self._builder: PartBuilder | None = None
        with suppress(Exception):  # the run of the store itself reports it
            if not all(self._folder.exists(name) for name in done_names(task.unit, recheck=False)):
                arguments = (target.directory, target.job, target.engine, target.reference_version)
                self._tokenizer = loaded_tokenizer(*arguments, at_once=tokenizers)
                self._builder = PartBuilder(target.job, task, target.limits.with_text)

    def add(self, file: SourceFile, documents: Documents) -> None:
        """Encode a batch of documents, nulls included."""
        builder, self._builder = self._builder, None
        if builder is None:
            return
        target, present = self._target, documents.without_nulls()
        with suppress(Exception):  # as above
            try:
                encoded = document_tokens(file, present, target.job, self._tokenizer, target.limits)
            except EngineMismatch as mismatch:
                publish_mismatch(self._folder, MismatchRecord("gigatoken", str(mismatch)))
                raise
            builder.skip(file, documents)
            builder.add(file, present, encoded)
            self._tokenizer.trim(target.limits.worker_bytes)
            self._builder = builder

    def commit(self, kept: pa.Table | None) -> Committed | None:
        """Publish the part, with the columns that are kept. None if it could not be made, or if its store has it."""
        if self._builder is None:
            return None
        with suppress(Exception):  # as above
            return Commit(self._folder, self._builder, recheck=False, kept=kept).by(self._tokenizer)()
        return None
