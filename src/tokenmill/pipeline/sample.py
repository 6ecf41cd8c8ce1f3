"""The estimator that `plan`, `datasets`, `bench` and the disk check share: tokens, disk and time from a little text.

`Measure` runs in a worker, because a damaged source may kill the process that reads it.
"""

from __future__ import annotations

import functools
import glob
import os
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.errors import SourceError
from tokenmill.executors.messages import raised_again, work_failed
from tokenmill.executors.outcomes import Done, Failed, RetryPolicy, Value
from tokenmill.pipeline import plan as planning
from tokenmill.pipeline.messages import span
from tokenmill.pipeline.plan import UnitTask
from tokenmill.pipeline.position import DEFAULT_SECONDS, Position
from tokenmill.pipeline.units import WorkerLimits, loaded_tokenizer, unit_documents, unit_tokens
from tokenmill.sources import discover, file_at, split_file
from tokenmill.sources.documents import Documents, ReadOptions
from tokenmill.storage import folder_at
from tokenmill.store import layout
from tokenmill.store.job import Job
from tokenmill.system import machine

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tokenmill.executors.outcomes import Executor, Outcome
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
_ONE_ATTEMPT = RetryPolicy(deaths=1, workers=1)

# How long and on how much text the speed of an engine is measured.
MEASURED_SECONDS = 1.0
MEASURED_BYTES = 32 << 20

# Less text than this is too little to measure a speed.
MIN_MEASURED_BYTES = 1 << 20


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
    tasks = planning.tasks(plan, sources, units[planning.spread(len(units), SAMPLED_UNITS)])
    outcomes = executor.run(measure, tasks, _ONE_ATTEMPT if skip_failures else _ONE_WORKER)
    samples = (outcome for outcome in outcomes if isinstance(outcome, Done)) if skip_failures else successes(outcomes)
    return functools.reduce(Sample.plus, (done.value for done in samples), Sample())


def successes(outcomes: Iterable[Outcome[UnitTask, Value]]) -> Iterator[Done[UnitTask, Value]]:
    """The outcomes of sampled units; raises the first that failed."""
    for outcome in outcomes:
        if isinstance(outcome, Done):
            yield outcome
        elif isinstance(outcome, Failed) and outcome.explained:
            raise raised_again(outcome, SourceError)
        elif isinstance(outcome, Failed) or outcome.final:
            raise work_failed([outcome], span)


def write_vocabulary(folder: Folder, vocabulary: Vocabulary) -> None:
    """Write a vocabulary where workers look for it, in a folder without a run."""
    folder.create(layout.TOKENIZER)
    with folder.publish(f"{layout.TOKENIZER}/{vocabulary.spec.file}") as file:
        file.write(vocabulary.content)


def bytes_per_second(vocabulary: Vocabulary, engine: str) -> float | None:
    """How much text one core reads and encodes in a second; None if this Python has too little text to measure it.

    Measured in this process on the source text of Python's own library.
    """
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "text.parquet")
        pq.write_table(pa.table({"text": pa.array(_library_texts(), pa.string())}), path, row_group_size=100)
        write_vocabulary(folder_at(directory), vocabulary)
        job = Job(vocabulary.spec, "text", None, None, None, 1 << 20)
        sources = discover([path]).table
        slices = split_file(file_at(sources, 0), ReadOptions(), job.unit_bytes)
        plan = planning.build_plan([slices], job.unit_bytes, None)
        tokenizer = loaded_tokenizer(directory, job, engine)
        limits = WorkerLimits(machine.default_memory_budget())
        done_bytes, seconds = 0, 0.0
        for task in planning.tasks(plan, sources, range(len(plan))):
            started = time.monotonic()
            done = sum(documents.text_bytes() for _, documents, _ in unit_tokens(task, job, tokenizer, limits))
            if task.unit == 0:  # the engine has just been loaded, and its caches are cold
                continue
            done_bytes += done
            seconds += time.monotonic() - started
            if seconds > MEASURED_SECONDS:
                break
    return done_bytes / seconds if done_bytes >= MIN_MEASURED_BYTES or seconds > MEASURED_SECONDS else None


def _library_texts() -> Iterator[str]:
    """The files of Python's own library, in a stable order, up to MEASURED_BYTES."""
    text_bytes = 0
    library = os.path.dirname(os.__file__)
    for path in sorted(glob.glob(os.path.join(library, "*.py")) + glob.glob(os.path.join(library, "*", "*.py"))):
        if text_bytes > MEASURED_BYTES:
            return
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        text_bytes += len(text)
        yield text
