"""Run one unit: where reader, tokenizer and part meet. Everything here happens inside a worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.errors import EngineMismatch, SourceError
from tokenmill.framing import framed
from tokenmill.job import Job
from tokenmill.layout import TOKENIZER
from tokenmill.part import (
    PartContent,
    PartSummary,
    Skipped,
    TokenArray,
    part_name,
    read_summary,
    write_part,
)
from tokenmill.planning import UnitTask
from tokenmill.sources import read_documents, split_file
from tokenmill.sources.documents import Documents, ReadOptions, SourceFile
from tokenmill.storage import Folder
from tokenmill.tokenizers.engine import Encoded
from tokenmill.tokenizers.tokenizer import MismatchAt, Tokenizer

WHOLE_FILE_BYTES = 1 << 62


class Committed(msgspec.Struct, frozen=True):
    """What a worker tells of a unit it has committed."""

    summary: PartSummary
    engine: str
    notices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Tokenize:
    """The function that turns a unit into a part of the store in `directory`."""

    directory: str
    job: Job
    engine: str
    worker_bytes: int

    def __call__(self, task: UnitTask) -> Committed:
        """Read, encode and publish one unit; a failed audit starts it again with the reference engine.

        A unit that has its part already is left alone: whoever published it died before telling.
        """
        folder = Folder(self.directory)
        if folder.exists(part_name(task.unit)):
            return Committed(read_summary(folder, task.unit), self.engine)
        tokenizer = loaded_tokenizer(self.directory, self.job, self.engine)
        builder = tokenizer.give_up_if_wrong(lambda: self._encode(task, tokenizer))
        summary = builder.publish(folder, self.job, task)
        return Committed(summary, tokenizer.engine, tokenizer.take_notices())

    def _encode(self, task: UnitTask, tokenizer: Tokenizer) -> _PartBuilder:
        builder = _PartBuilder(self.job)
        for file, documents, encoded in unit_tokens(task, self.job, tokenizer, self.worker_bytes):
            builder.add(file, documents, encoded)
        return builder


@dataclass(frozen=True, slots=True)
class Summarise:
    """The function that reads the summaries of many parts, for the manifest."""

    directory: str

    def __call__(self, units: tuple[int, ...]) -> list[PartSummary]:
        """The summaries, in the order asked for."""
        folder = Folder(self.directory)
        return [read_summary(folder, unit) for unit in units]


def unit_documents(task: UnitTask, job: Job) -> Iterator[tuple[SourceFile, Documents]]:
    """The documents of a unit, nulls included, in order."""
    options = ReadOptions(job.column, job.separator)
    for file in task.files:
        if task.start is not None and task.stop is not None:
            start, stop = task.start, task.stop
        else:
            slices = split_file(file, options, WHOLE_FILE_BYTES)
            if not len(slices.start):
                continue
            start, stop = int(slices.start[0]), int(slices.stop[-1])
        for documents in read_documents(file, start, stop, options):
            yield file, documents


def unit_tokens(
    task: UnitTask, job: Job, tokenizer: Tokenizer, worker_bytes: int
) -> Iterator[tuple[SourceFile, Documents, Encoded]]:
    """The documents of a unit, nulls included, with the framed tokens of those that are not null, batch by batch."""
    for file, documents in unit_documents(task, job):
        present = documents.without_nulls()
        try:
            encoded = tokenizer.encode(present.text)
        except MismatchAt as mismatch:
            raise _named(mismatch, file, present) from None
        yield file, documents, framed(encoded, job.begin, job.end)
        tokenizer.trim(worker_bytes)


_loaded: dict[tuple[str, str], Tokenizer] = {}


def loaded_tokenizer(directory: str, job: Job, engine: str) -> Tokenizer:
    """This worker's tokenizer: built on first use, from the run's own copy of the vocabulary."""
    path = Folder(directory).path(f"{TOKENIZER}/{job.tokenizer.file}")
    if (path, engine) not in _loaded:
        _loaded.clear()
        _loaded[path, engine] = Tokenizer(job.tokenizer, path, engine)
    return _loaded[path, engine]


@dataclass(slots=True)
class _PartBuilder:
    """Collects the columns of a part, batch by batch."""

    job: Job
    tokens: list[TokenArray] = field(default_factory=list)
    lengths: list[npt.NDArray[np.int64]] = field(default_factory=list)
    sources: list[npt.NDArray[np.uint32]] = field(default_factory=list)
    rows: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    text_bytes: int = 0

    def add(self, file: SourceFile, documents: Documents, encoded: Encoded) -> None:
        """Take the tokens of the documents that are there; those that are null are noted as skipped."""
        if documents.text.null_count:
            self.skipped.extend(_ranges(file.index, documents.rows[documents.null_mask()], "null"))
        present = documents.without_nulls()
        self.tokens.append(encoded.tokens)
        self.lengths.append(np.diff(encoded.offsets))
        self.sources.append(np.full(len(present.rows), file.index, np.uint32))
        self.rows.append(present.rows)
        self.text_bytes += present.text_bytes()

    def publish(self, folder: Folder, job: Job, task: UnitTask) -> PartSummary:
        """Write the part. Every row that the plan knows of is in it, or among the skipped."""
        lengths = _joined(self.lengths, np.int64)
        content = PartContent(
            tokens=_joined(self.tokens, job.tokenizer.dtype),
            offsets=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]),
            source=_joined(self.sources, np.uint32),
            row=_joined(self.rows, np.uint64),
        )
        summary = PartSummary(
            unit=task.unit,
            job=job.digest(),
            documents=len(lengths),
            tokens=len(content.tokens),
            text_bytes=self.text_bytes,
            skipped=tuple(self.skipped),
        )
        seen = summary.documents + summary.skipped_rows
        if task.rows is not None and seen != task.rows:
            raise SourceError(
                "a source gave another number of rows than it announced",
                f"file         {task.files[0].path}",
                f"expected     {task.rows} rows",
                f"found        {seen}",
            )
        return write_part(folder, summary, content)


def _joined(arrays: Sequence[npt.NDArray[Any]], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    if len(arrays) == 1:
        return arrays[0]
    return np.concatenate(arrays) if arrays else np.empty(0, dtype)


def _ranges(source: int, rows: npt.NDArray[np.uint64], reason: str) -> Iterator[Skipped]:
    """Rows that follow each other, put together."""
    for run in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        yield Skipped(source, int(run[0]), int(run[-1]), len(run), reason)


def _named(mismatch: MismatchAt, file: SourceFile, documents: Documents) -> EngineMismatch:
    row = documents.rows[mismatch.position]
    return EngineMismatch(f"{mismatch.headline} (file {file.path}, row {row})")
