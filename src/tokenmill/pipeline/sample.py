"""Measure a little text of one unit: how many tokens, how long. Runs in a worker, which a damaged source may kill."""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tokenmill.executors.fan_out import run_all
from tokenmill.executors.messages import work_failed
from tokenmill.executors.outcomes import Died, Failed, RetryPolicy
from tokenmill.pipeline.messages import span
from tokenmill.pipeline.plan import UnitTask, tasks
from tokenmill.pipeline.position import DEFAULT_SECONDS, Position
from tokenmill.pipeline.units import loaded_tokenizer, unit_documents
from tokenmill.sources.documents import Documents, ReadOptions
from tokenmill.storage import folder_at
from tokenmill.store import layout
from tokenmill.store.job import Job

if TYPE_CHECKING:
    from typing import NoReturn

    import pyarrow as pa

    from tokenmill.executors.outcomes import Executor
    from tokenmill.pipeline.request import PrepareRequest
    from tokenmill.pipeline.units import WorkerLimits
    from tokenmill.storage import Folder
    from tokenmill.tokenizers.resolve import Vocabulary

SAMPLE_BYTES = 1 << 20
SAMPLED_UNITS = 8
# One worker encodes the sample, so that its time is that of one core.
ONE_BY_ONE = RetryPolicy(workers=1)


class Sample(msgspec.Struct, frozen=True):
    """Some documents of a unit, encoded."""

    text_bytes: int = 0
    documents: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def plus(self, other: Sample) -> Sample:
        """Two samples as one."""
        return Sample(
            self.text_bytes + other.text_bytes,
            self.documents + other.documents,
            self.tokens + other.tokens,
            self.seconds + other.seconds,
        )


@dataclass(frozen=True, slots=True)
class Measure:
    """The function that encodes the first documents of a unit, with the vocabulary that is in `directory`.

    Its worker is stopped if that takes longer than `encode_seconds`.
    """

    directory: str
    job: Job
    engine: str
    options: ReadOptions
    encode_seconds: float = DEFAULT_SECONDS

    def __call__(self, task: UnitTask) -> Sample:
        """Small samples run cold, so times are an upper bound."""
        documents = self._documents(task)
        if documents is None:
            return Sample()
        tokenizer = loaded_tokenizer(self.directory, self.job, self.engine)
        Position("encode").mark(self.encode_seconds)
        started = time.monotonic()
        encoded = tokenizer.encode(documents.text)
        seconds = time.monotonic() - started
        count = len(documents.rows)
        boundaries = (self.job.begin is not None) + (self.job.end is not None)
        return Sample(documents.text_bytes(), count, len(encoded.tokens) + boundaries * count, seconds)

    def _documents(self, task: UnitTask) -> Documents | None:
        batches = (documents.without_nulls() for _, documents in unit_documents(task, self.options))
        first = next((documents for documents in batches if len(documents.rows)), None)
        return None if first is None else first.slice_bytes(SAMPLE_BYTES)


ROW_BYTES = 8 + 4 + 8
"""What a document takes in a part beside its tokens: offset, source, row."""


def raise_failure(failure: Failed[UnitTask] | Died[UnitTask]) -> NoReturn:
    """End a sample at its first failed unit."""
    raise failure.error() if isinstance(failure, Failed) and failure.explained else work_failed([failure], span)


def store_bytes(tokens: int, documents: int, token_bytes: int) -> int:
    """The size of a store on disk."""
    return tokens * token_bytes + documents * ROW_BYTES


def write_vocabulary(folder: Folder, vocabulary: Vocabulary) -> None:
    """Write a vocabulary to where workers look for it, in a folder that has no run."""
    folder.create(layout.TOKENIZER)
    with folder.publish(f"{layout.TOKENIZER}/{vocabulary.spec.file}") as file:
        file.write(vocabulary.content)


def measure_sample(request: PrepareRequest, units: pa.Table, limits: WorkerLimits, executor: Executor) -> Sample:
    """Encode some text of units spread over the corpus. Bad rows are skipped."""
    chosen = np.unique(np.linspace(0, len(units) - 1, min(SAMPLED_UNITS, len(units))).astype(int))
    options = msgspec.structs.replace(limits.read_options(request.job), on_bad="quarantine")
    sample = Sample()
    with tempfile.TemporaryDirectory() as directory:
        write_vocabulary(folder_at(directory), request.vocabulary)
        measure = Measure(directory, request.job, request.choice.engine, options)
        sampled = tasks(units, request.discovery.table, chosen)
        for done in run_all(executor, measure, sampled, policy=ONE_BY_ONE, on_failure=raise_failure):
            sample = sample.plus(done.value)
    return sample
