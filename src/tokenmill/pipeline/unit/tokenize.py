"""Tokenizes one unit: reads its sources, encodes the documents, publishes the part. Runs in a worker.

The worker marks its position, so that the report of its death names the rows (see `Position`).

Several stores can be made from one read: the documents that the run of the first store reads are encoded by the
tokenizers of its companions, too. Nothing depends on these: a companion's unit that could not be made here is made
again by the run of its own store, which follows and reports what is wrong.
"""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tokenmill.errors import EngineMismatch
from tokenmill.pipeline.unit.commit import Commit, Committed, done_names, report_existing
from tokenmill.pipeline.unit.documents import (
    WorkerLimits,
    document_tokens,
    existence,
    left_out,
    loaded_tokenizer,
    prefetch_files,
    unit_tokens,
)
from tokenmill.pipeline.unit.part_builder import PartBuilder
from tokenmill.pipeline.unit.plan import Position, UnitTask
from tokenmill.sources.documents import Documents, SourceFile
from tokenmill.storage import folder_at, io_threads
from tokenmill.store.job import Job
from tokenmill.store.state import MismatchRecord, publish_mismatch
from tokenmill.system import machine
from tokenmill.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Tokenize:
    """The function that turns a unit into a part of the store in `directory`.

    `reference_version` is the version, at the start of the run, of the library that defines the tokens. With `recheck`
    the reference engine tokenizes the unit, and an existing part is kept only if it is equal. `companions` are
    those of other stores, whose parts are made from the same documents.
    """

    directory: str
    job: Job
    engine: str
    limits: WorkerLimits
    reference_version: str = ""
    recheck: bool = False
    companions: tuple[Tokenize, ...] = ()

    def prefetch(self, task: UnitTask) -> None:
        """Start to look for the part of a unit, and to fetch its sources, while another unit is being tokenized."""
        for name in done_names(task.unit, recheck=self.recheck):
            existence.begin(self.directory, name)
        prefetch_files(task, 0, self.limits.read_options(self.job))

    def __call__(self, task: UnitTask) -> Committed | Future[Committed]:
        """Read, encode and publish one unit; a failed audit starts it again with the reference engine.

        A unit that another driver has committed is skipped. The part is written in the background.
        """
        Position("begin").mark()
        folder = folder_at(self.directory)
        answers = [existence.exists(folder, name) for name in done_names(task.unit, recheck=self.recheck)]
        if all(answers):
            return report_existing(folder, task.unit, self.engine)
        arguments = (self.directory, self.job, self.engine, self.reference_version)
        tokenizer = loaded_tokenizer(*arguments, at_once=1 + len(self.companions))
        if self.limits.threads > 1:  # counting the cores reads files of the system
            tokenizer.use_threads(min(self.limits.threads, machine.cores()))
        builder, others = tokenizer.retry_with_reference(lambda: self._encode(task, tokenizer))
        kept = builder.read_kept(self.limits)
        Position("write").mark()
        commit = Commit(folder, builder, self.recheck, kept).by(tokenizer)

        def publish() -> Committed:
            parts = tuple(other.commit(kept) for other in others)
            return msgspec.structs.replace(commit(), companions=parts)

        return io_threads().submit(publish)

    def _encode(self, task: UnitTask, tokenizer: Tokenizer) -> tuple[PartBuilder, list[CompanionPart]]:
        builder = PartBuilder(self.job, task, self.limits.with_text)
        others = [CompanionPart(companion, task, 1 + len(self.companions)) for companion in self.companions]
        lists = left_out(self.directory, self.job)
        for file, documents, encoded in unit_tokens(self.directory, task, self.job, tokenizer, self.limits, lists):
            builder.skip(file, documents)
            builder.add(file, documents.without_nulls(), encoded)
            for other in others:
                other.add(file, documents)
        return builder, others


class CompanionPart:
    """The part of a companion. The first error ends it."""

    def __init__(self, target: Tokenize, task: UnitTask, tokenizers: int) -> None:
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
