"""Measures the speed of this process or of all workers together: a second of reading and encoding.

The text is the standard library of Python, which is present on every machine.
"""

from __future__ import annotations

import glob
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.executors.fan_out import run_all
from tokenmill.pipeline.planning.estimate import Estimate
from tokenmill.pipeline.planning.sample import write_vocabulary
from tokenmill.pipeline.unit.documents import WorkerLimits, loaded_tokenizer, unit_tokens
from tokenmill.pipeline.unit.plan import build_plan, tasks
from tokenmill.sources import discover, file_at, split_file
from tokenmill.sources.documents import ReadOptions
from tokenmill.storage import folder_at
from tokenmill.store.job import Job
from tokenmill.system import machine

if TYPE_CHECKING:
    from tokenmill.executors.outcomes import Executor
    from tokenmill.tokenizers.resolve import Vocabulary

MAX_SECONDS = 1.0
MAX_BYTES = 32 << 20
# A rate measured on less text means nothing.
MIN_BYTES = 1 << 20
UNIT_BYTES = 1 << 20

# The speed of a run as a fraction of the speed that is measured here: it writes parts, too, and its text may be slower.
MIN_FRACTION = 0.5


def core_bytes_per_second(vocabulary: Vocabulary, engine: str) -> float | None:
    """The text bytes per second of a worker, without writing. None if there is too little text to measure."""
    with _measurement(vocabulary, engine) as measure:
        return measure(0)


def machine_bytes_per_second(vocabulary: Vocabulary, engine: str, executor: Executor, workers: int) -> Estimate | None:
    """The text bytes per second of a run with so many workers, measured while all of them work. None as above."""
    with _measurement(vocabulary, engine) as measure:
        rates = [done.value for done in run_all(executor, measure, range(workers), lambda _: "the speed of a worker")]
    total = sum(rate for rate in rates if rate is not None)
    return Estimate(MIN_FRACTION * total, total) if total else None


@contextmanager
def _measurement(vocabulary: Vocabulary, engine: str) -> Iterator[MeasureSpeed]:
    """The function that measures, with the files that it needs."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "text.parquet")
        pq.write_table(pa.table({"text": pa.array(_library_texts(), pa.string())}), path, row_group_size=100)
        write_vocabulary(folder_at(directory), vocabulary)
        yield MeasureSpeed(path, directory, Job(vocabulary.spec, "text", None, None, None, UNIT_BYTES), engine)


@dataclass(frozen=True, slots=True)
class MeasureSpeed:
    """The function that reads and encodes text for a second. Returns bytes per second, or None after too few."""

    path: str
    directory: str
    job: Job
    engine: str

    def __call__(self, _worker: int) -> float | None:
        """Measure. The first unit is not counted: it warms up the engine."""
        job = self.job
        sources = discover([self.path]).table
        plan = build_plan([split_file(file_at(sources, 0), ReadOptions(), job.unit_bytes)], job.unit_bytes, None)
        tokenizer = loaded_tokenizer(self.directory, job, self.engine)
        limits = WorkerLimits(machine.default_memory_budget())
        text_bytes, seconds = 0, 0.0
        for task in tasks(plan, sources, range(len(plan))):
            started = time.monotonic()
            unit_bytes = sum(documents.text_bytes() for _, documents, _ in unit_tokens(task, job, tokenizer, limits))
            if task.unit == 0:
                continue
            text_bytes += unit_bytes
            seconds += time.monotonic() - started
            if seconds > MAX_SECONDS:
                break
        return text_bytes / seconds if text_bytes >= MIN_BYTES or seconds > MAX_SECONDS else None


def _library_texts() -> Iterator[str]:
    """The files of the standard library, in a stable order."""
    characters = 0
    library = os.path.dirname(os.__file__)
    for path in sorted(glob.glob(os.path.join(library, "*.py")) + glob.glob(os.path.join(library, "*", "*.py"))):
        if characters > MAX_BYTES:
            return
        with open(path, encoding="utf-8", errors="replace") as file:
            text = file.read()
        characters += len(text)
        yield text
