"""The speed of this machine on text that is on every machine: the standard library of Python.

`datasets` and `tokenizers` need a speed before there is any text to measure it on.
"""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.errors import SourceError
from tokenmill.executors.fan_out import ignore
from tokenmill.executors.outcomes import Executor
from tokenmill.pipeline.bench.measure import MeasureSpeed, measure_all
from tokenmill.pipeline.planning.estimate import Estimate
from tokenmill.pipeline.planning.sample import write_vocabulary
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.pipeline.unit.plan import UnitTask, build_plan, tasks
from tokenmill.sources import discover, file_at, split_file
from tokenmill.sources.documents import ReadOptions
from tokenmill.storage import folder_at
from tokenmill.store.job import Job
from tokenmill.store.layout import PARTS
from tokenmill.system import machine
from tokenmill.tokenization.resolve import Vocabulary

SECONDS = 1.0
MAX_BYTES = 32 << 20
# A rate measured on less text means nothing.
MIN_BYTES = 1 << 20
UNIT_BYTES = 4 << 20

# The speed of a run as a fraction of the speed that is measured here: its text may be slower.
MIN_FRACTION = 0.5


def core_bytes_per_second(vocabulary: Vocabulary, engine: str) -> float | None:
    """The text bytes per second of a worker. None if there is too little text to measure."""
    with suppress(SourceError), _measurement(vocabulary, engine) as (measure, units):
        return measure(units).bytes_per_second
    return None


def machine_bytes_per_second(vocabulary: Vocabulary, engine: str, executor: Executor, workers: int) -> Estimate | None:
    """The text bytes per second of a run with so many workers, measured while all of them work. None as above."""
    with suppress(SourceError), _measurement(vocabulary, engine) as (measure, units):
        rate = measure_all(executor, measure, [units] * workers, ignore).bytes_per_second
        return Estimate(MIN_FRACTION * rate, rate)
    return None


@contextmanager
def _measurement(vocabulary: Vocabulary, engine: str) -> Iterator[tuple[MeasureSpeed, tuple[UnitTask, ...]]]:
    """The function that measures, and its units."""
    with tempfile.TemporaryDirectory() as directory:
        sources = discover([write_library(directory)]).table
        folder = folder_at(directory)
        folder.create(PARTS)
        write_vocabulary(folder, vocabulary)
        job = Job(vocabulary.spec, "text", None, None, None, UNIT_BYTES, UNIT_BYTES)
        plan = build_plan([split_file(file_at(sources, 0), ReadOptions(), UNIT_BYTES)], UNIT_BYTES)
        limits = WorkerLimits(machine.default_memory_budget())
        yield MeasureSpeed(directory, job, engine, limits, SECONDS), tuple(tasks(plan, sources, range(len(plan))))


def write_library(directory: str) -> str:
    """Write the text of the standard library as a Parquet file, and return its path."""
    texts = list(_library_texts())
    if sum(map(len, texts)) < MIN_BYTES:
        raise SourceError("this Python has too little text to measure the speed on", "Name a SOURCE.")
    path = os.path.join(directory, "text.parquet")
    pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), path, row_group_size=100)
    return path


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
