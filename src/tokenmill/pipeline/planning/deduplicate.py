"""`--dedup exact`: find the rows whose text is equal to that of an earlier row, before the run is frozen.

Workers read the text of each unit and hash it (XXH3, 128 bits). The rows that `--where` and `--deny` exclude are no
documents, so they have no duplicates. Conversations are compared before they are rendered. The process of the caller
sorts the hashes, with up to 60 bytes a document.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from tokenmill.executors.fan_out import run_all
from tokenmill.executors.outcomes import Executor
from tokenmill.pipeline.planning.request import PrepareRequest
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.documents import MAX_BATCH_BYTES, LeftOut, unit_rows
from tokenmill.pipeline.unit.plan import UnitTask
from tokenmill.sources.documents import ReadOptions
from tokenmill.store.deny import DenyList, parse_list
from tokenmill.store.duplicates import DuplicateRows

HASHED_ROW = np.dtype([("high", "<u8"), ("low", "<u8"), ("source", "<u4"), ("row", "<u8")])

HashedRows = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class HashTexts:
    """The function that hashes the text of each document of a unit."""

    options: ReadOptions
    deny: bytes

    def __call__(self, task: UnitTask) -> HashedRows:
        """The hashes of the documents of a unit, in order."""
        batches = [np.empty(0, HASHED_ROW)]
        left_out = LeftOut(_parsed(self.deny) if self.deny else None)
        for file, documents in unit_rows(task, self.options, left_out):
            present = documents.without_nulls()
            batch = np.empty(len(present.rows), HASHED_ROW)
            hashes = np.frombuffer(_hashes(present.text), "<u8").reshape(-1, 2)
            batch["high"], batch["low"] = hashes[:, 0], hashes[:, 1]
            batch["source"], batch["row"] = file.index, present.rows
            batches.append(batch)
        return np.concatenate(batches)


def find_duplicates(
    units: pa.Table,
    sources: pa.Table,
    request: PrepareRequest,
    executor: Executor,
    on_progress: Callable[[int], None] = lambda _: None,
) -> DuplicateRows:
    """The rows whose text is equal to that of an earlier row, sorted by source and row."""
    job = request.job
    options = job.read_options(batch_bytes=MAX_BATCH_BYTES, on_bad="quarantine", document_bytes=job.document_bytes)
    batches = [np.empty(0, HASHED_ROW)]
    tasks = plan.tasks(units, sources, range(len(units)))
    for done in run_all(executor, HashTexts(options, request.deny), tasks, lambda task: f"unit {task.unit}"):
        batches.append(done.value)
        on_progress(len(batches) - 1)
    hashed = np.concatenate(batches)
    batches.clear()
    rows = later_rows(hashed)
    return DuplicateRows(np.ascontiguousarray(rows["source"]), np.ascontiguousarray(rows["row"]))


def later_rows(rows: HashedRows) -> HashedRows:
    """The rows of each hash but the first, sorted by source and row."""
    order = np.lexsort((rows["row"], rows["source"], rows["low"], rows["high"]))
    is_later = np.zeros(len(rows), np.bool_)
    is_later[1:] = True
    for name in ("high", "low"):
        values = rows[name][order]
        is_later[1:] &= values[1:] == values[:-1]
    rows = rows[order[is_later]]
    return rows[np.lexsort((rows["row"], rows["source"]))]


@functools.lru_cache(maxsize=1)
def _parsed(deny: bytes) -> DenyList:
    return parse_list(deny)


def _hashes(text: pa.LargeStringArray) -> bytes:
    """The hash of each text. A call of the library takes less than a microsecond, and reads at memory speed."""
    if not len(text):
        return b""
    _, offsets, data = text.buffers()
    ends = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1].tolist()
    view = memoryview(b"" if data is None else data)
    digest = xxhash.xxh3_128_digest
    return b"".join([digest(view[start:end]) for start, end in pairwise(ends)])
