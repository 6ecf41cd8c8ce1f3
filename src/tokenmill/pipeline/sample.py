"""The estimator that `plan`, `datasets`, `bench` and the disk check share: tokens, disk and time from a little text.

`Measure` runs in a worker, because a damaged source may kill the process that reads it.
"""

from __future__ import annotations

import functools
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tokenmill.executors.fan_out import ignore, run_all
from tokenmill.executors.messages import work_failed
from tokenmill.executors.outcomes import Died, Failed
from tokenmill.executors.retry_policy import RetryPolicy
from tokenmill.pipeline.messages import span
from tokenmill.pipeline.plan import UnitTask, spread, tasks
from tokenmill.pipeline.position import DEFAULT_SECONDS, Position
from tokenmill.pipeline.units import WorkerLimits, loaded_tokenizer, unit_documents
from tokenmill.sources.documents import Documents
from tokenmill.storage import folder_at
from tokenmill.store import layout
from tokenmill.store.job import Job

if TYPE_CHECKING:
    from typing import NoReturn

    import numpy.typing as npt
    import pyarrow as pa

    from tokenmill.executors.outcomes import Executor
    from tokenmill.pipeline.request import PrepareRequest
    from tokenmill.pipeline.units import WorkerLimits
    from tokenmill.storage import Folder
    from tokenmill.tokenizers.resolve import Vocabulary

# What a document takes in a part beside its tokens: offset, source, row.
ROW_BYTES = 8 + 4 + 8

# How much text of a unit is encoded.
SAMPLE_BYTES = 1 << 20

# How many units are sampled.
SAMPLED_UNITS = 8

# One worker encodes the sample, so that the time is that of one core.
_ONE_WORKER = RetryPolicy(workers=1)

# The same where units that cannot be sampled are skipped.
_ONE_ATTEMPT = RetryPolicy(max_crashes=1, workers=1)


class Sample(msgspec.Struct, frozen=True):
    """Counts of some encoded documents, and the seconds that encoding them took."""

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
    """The function that encodes the first documents of a unit, with the vocabulary in `directory`. Skips bad rows.

    A worker that takes longer than `encode_seconds` is stopped.
    """

    directory: str
    job: Job
    engine: str
    limits: WorkerLimits
    encode_seconds: float = DEFAULT_SECONDS

    def __call__(self, task: UnitTask) -> Sample:
        """Encode a sample. Its time is an upper bound, because a small sample runs with cold caches."""
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
        options = msgspec.structs.replace(self.limits.read_options(self.job), on_bad="quarantine")
        batches = (documents.without_nulls() for _, documents in unit_documents(task, options))
        first = next((documents for documents in batches if len(documents.rows)), None)
        return None if first is None else first.slice_bytes(SAMPLE_BYTES)


def measure_units(  # noqa: PLR0913 - the worker function, and the units to spread it over
    executor: Executor,
    measure: Measure,
    plan: pa.Table,
    sources: pa.Table,
    units: npt.NDArray[np.int64],
    *,
    skip_failures: bool = False,
) -> Sample:
    """Encode a little text from units that are spread over `units`. Raises for a unit that fails, or skips it."""
    results = run_all(
        executor,
        measure,
        tasks(plan, sources, units[spread(len(units), SAMPLED_UNITS)]),
        policy=_ONE_ATTEMPT if skip_failures else _ONE_WORKER,
        on_failure=ignore if skip_failures else raise_failure,
    )
    return functools.reduce(Sample.plus, (done.value for done in results), Sample())


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
    with tempfile.TemporaryDirectory() as directory:
        write_vocabulary(folder_at(directory), request.vocabulary)
        measure = Measure(directory, request.job, request.choice.engine, limits)
        return measure_units(executor, measure, units, request.discovery.table, np.arange(len(units)))
