"""Measure a little text of one unit: how many tokens, how long. Runs in a worker, which a damaged source may kill."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tokenmill.executors.messages import work_failed
from tokenmill.executors.outcomes import Died, Failed
from tokenmill.pipeline.messages import span
from tokenmill.pipeline.plan import UnitTask
from tokenmill.pipeline.position import DEFAULT_SECONDS, Position
from tokenmill.pipeline.units import loaded_tokenizer, unit_documents
from tokenmill.sources.documents import Documents, ReadOptions
from tokenmill.store.job import Job

if TYPE_CHECKING:
    from typing import NoReturn

SAMPLE_BYTES = 1 << 20


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
