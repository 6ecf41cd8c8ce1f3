"""Measures the speed of one core in this process, for `datasets`: a second of reading and encoding.

The text is the standard library of Python, which is present on every machine.
"""

from __future__ import annotations

import glob
import os
import tempfile
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.pipeline.plan import build_plan, tasks
from tokenmill.pipeline.sample import write_vocabulary
from tokenmill.pipeline.units import WorkerLimits, loaded_tokenizer, unit_tokens
from tokenmill.sources import discover, file_at, split_file
from tokenmill.sources.documents import ReadOptions
from tokenmill.storage import folder_at
from tokenmill.store.job import Job
from tokenmill.system import machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenmill.tokenizers.resolve import Vocabulary

MAX_SECONDS = 1.0
MAX_BYTES = 32 << 20
# A rate measured on less text means nothing.
MIN_BYTES = 1 << 20
UNIT_BYTES = 1 << 20


def core_bytes_per_second(vocabulary: Vocabulary, engine: str) -> float | None:
    """The text bytes per second of a worker, without writing. None if there is too little text to measure."""
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "text.parquet")
        pq.write_table(pa.table({"text": pa.array(_library_texts(), pa.string())}), path, row_group_size=100)
        write_vocabulary(folder_at(directory), vocabulary)
        return _measure(path, directory, Job(vocabulary.spec, "text", None, None, None, UNIT_BYTES), engine)


def _measure(path: str, directory: str, job: Job, engine: str) -> float | None:
    sources = discover([path]).table
    plan = build_plan([split_file(file_at(sources, 0), ReadOptions(), job.unit_bytes)], job.unit_bytes, None)
    tokenizer = loaded_tokenizer(directory, job, engine)
    limits = WorkerLimits(machine.default_memory_budget())
    text_bytes, seconds = 0, 0.0
    for task in tasks(plan, sources, range(len(plan))):
        started = time.monotonic()
        unit_bytes = sum(documents.text_bytes() for _, documents, _ in unit_tokens(task, job, tokenizer, limits))
        if task.unit == 0:  # warms up the engine
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
