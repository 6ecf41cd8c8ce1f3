"""Run one unit: where reader, tokenizer and part meet. Everything here happens inside a worker.

A worker marks where it is, so that its death can be told with the rows it had (see places).
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass

from tokenmill.pipeline.commit import Commit, Committed, done_names, found
from tokenmill.pipeline.part_builder import PartBuilder
from tokenmill.pipeline.plan import UnitTask
from tokenmill.pipeline.position import Position
from tokenmill.pipeline.units import WorkerLimits, _existence, _prefetch_files, loaded_tokenizer, unit_tokens
from tokenmill.storage import folder_at, io_threads
from tokenmill.store.job import Job
from tokenmill.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Tokenize:
    """The function that turns a unit into a part of the store in `directory`.

    `reference_version` is that of the library that defines the tokens, as the run was started with. With `recheck` the
    unit is done by the reference engine, and a part that is there is kept only if it is equal.
    """

    directory: str
    job: Job
    engine: str
    limits: WorkerLimits
    reference_version: str = ""
    recheck: bool = False

    def prefetch(self, task: UnitTask) -> None:
        """Begin to find out whether a unit is done, and to fetch what it reads, while another one is done."""
        for name in done_names(task.unit, recheck=self.recheck):
            _existence.begin(self.directory, name)
        _prefetch_files(task, 0, self.limits.read_options(self.job))

    def __call__(self, task: UnitTask) -> Committed | Future[Committed]:
        """Read, encode and publish one unit; a failed audit starts it again with the reference engine.

        A unit that has its part already is skipped: another process published it. Where publishing takes a network, it
        goes on in the background.
        """
        Position("begin").mark()
        folder = folder_at(self.directory)
        answers = [_existence.exists(folder, name) for name in done_names(task.unit, recheck=self.recheck)]
        if all(answers):
            return found(folder, task.unit, self.engine)
        tokenizer = loaded_tokenizer(self.directory, self.job, self.engine, self.reference_version)
        builder = tokenizer.retry_with_reference(lambda: self._encode(task, tokenizer))
        Position("write").mark()
        commit = Commit(folder, builder, self.recheck).by(tokenizer)
        return io_threads().submit(commit) if folder.is_remote else commit()

    def _encode(self, task: UnitTask, tokenizer: Tokenizer) -> PartBuilder:
        builder = PartBuilder(self.job, task, self.limits.with_text)
        for file, documents, encoded in unit_tokens(task, self.job, tokenizer, self.limits):
            builder.leave_out(file, documents)
            builder.add(file, documents.without_nulls(), encoded)
        return builder
