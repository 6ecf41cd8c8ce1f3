"""Run one unit: where reader, tokenizer and part meet. Everything here happens inside a worker.

A worker marks where it is, so that its death can be told with the rows it had (see places).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec
import pyarrow as pa

from tokenmill import layout
from tokenmill.building import PartBuilder
from tokenmill.errors import EngineMismatch
from tokenmill.framing import framed
from tokenmill.job import Job
from tokenmill.part import PartSummary, part_name, read_summary
from tokenmill.places import USUAL_SECONDS, Place
from tokenmill.planning import UnitTask
from tokenmill.sources import foresee, read_documents, split_file
from tokenmill.sources.documents import Documents, ReadOptions, SourceFile
from tokenmill.storage import Folder, Overtaken, folder_at, in_background, in_turn
from tokenmill.tokenizers.engine import CannotEncode, Encoded
from tokenmill.tokenizers.tokenizer import MismatchAt, Tokenizer

WHOLE_FILE_BYTES = 1 << 62
MOST_BATCH_BYTES = 4 << 20
LEAST_BATCH_BYTES = 256 << 10
SPARING_BATCH_BYTES = 64 << 10
BATCHES_IN_WORKER = 128
"""How many times the text of a batch a worker has in memory, with all that is made of it, and much to spare."""


FILES_AHEAD = 8
"""How many files of a unit are on their way while one is read."""

HEADERS_AHEAD = 32
"""How many headers of parts are."""

SLOW_BYTES = 250_000
"""What an engine encodes in a second at the least: the longer a batch of many documents, the longer it may take."""


class Encoder(Protocol):
    """What documents are given to: a Tokenizer, or something around one."""

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        """The tokens of each document, without begin and end tokens."""
        ...

    def trim(self, most_bytes: int) -> None:
        """Called after each batch: hold no more than this."""
        ...


class Limits(msgspec.Struct, frozen=True):
    """What a worker may use, and what becomes of rows that cannot be documents."""

    worker_bytes: int
    document_bytes: int | None = None
    document_seconds: float = USUAL_SECONDS
    on_bad: str = "fail"
    with_text: bool = False

    def read_options(self, job: Job, *, sparing: bool = False) -> ReadOptions:
        """How the sources are read: by and by, and a little at a time where memory matters more than speed."""
        batch_bytes = min(MOST_BATCH_BYTES, max(LEAST_BATCH_BYTES, self.worker_bytes // BATCHES_IN_WORKER))
        batch_bytes = SPARING_BATCH_BYTES if sparing else batch_bytes
        return ReadOptions(job.column, job.separator, batch_bytes, self.on_bad, self.document_bytes)


class Committed(msgspec.Struct, frozen=True):
    """What a worker tells of a unit that is committed: by it, or by somebody else, whose part was `found`."""

    summary: PartSummary
    engine: str
    notices: tuple[str, ...] = ()
    found: bool = False


@dataclass(frozen=True, slots=True)
class Tokenize:
    """The function that turns a unit into a part of the store in `directory`."""

    directory: str
    job: Job
    engine: str
    limits: Limits

    def foresee(self, task: UnitTask) -> None:
        """Begin to find out whether a unit is done, and to fetch what it reads, while another one is done."""
        _looking.begin(self.directory, task.unit)
        _foresee_files(task, 0, self.limits.read_options(self.job))

    def __call__(self, task: UnitTask) -> Committed | Future[Committed]:
        """Read, encode and publish one unit; a failed audit starts it again with the reference engine.

        A unit that has its part already is left alone: whoever published it died before telling, or is another machine.
        Where publishing takes a network, it goes on in the background.
        """
        Place("begin").mark()
        folder = folder_at(self.directory)
        if _looking.is_done(folder, task.unit):
            return found(folder, task.unit, self.engine)
        tokenizer = loaded_tokenizer(self.directory, self.job, self.engine)
        builder = tokenizer.give_up_if_wrong(lambda: self._encode(task, tokenizer))
        Place("write").mark()
        told = (folder, builder, tokenizer.engine, tokenizer.take_notices())
        return in_background().submit(commit, *told) if folder.is_remote else commit(*told)

    def _encode(self, task: UnitTask, tokenizer: Tokenizer) -> PartBuilder:
        builder = PartBuilder(self.job, task, self.limits.with_text)
        for file, documents, encoded in unit_tokens(task, self.job, tokenizer, self.limits):
            builder.leave_out(file, documents)
            builder.add(file, documents.without_nulls(), encoded)
        return builder


@dataclass(frozen=True, slots=True)
class Summarise:
    """The function that reads the summaries of many parts, for the manifest."""

    directory: str

    def __call__(self, units: tuple[int, ...]) -> list[PartSummary]:
        """The summaries, in the order asked for."""
        folder = folder_at(self.directory)
        return list(in_turn(folder, partial(read_summary, folder), units, HEADERS_AHEAD))


def found(folder: Folder, unit: int, engine: str) -> Committed:
    """Tell of a part that is there already."""
    return Committed(read_summary(folder, unit), engine, found=True)


def commit(folder: Folder, builder: PartBuilder, engine: str, notices: tuple[str, ...]) -> Committed:
    """Publish a part and tell of it, or of the one that another machine has published meanwhile."""
    try:
        return Committed(builder.publish(folder), engine, notices)
    except Overtaken:
        return found(folder, builder.task.unit, engine)


def unit_documents(task: UnitTask, options: ReadOptions) -> Iterator[tuple[SourceFile, Documents]]:
    """The documents of a unit, nulls included, in order."""
    for place, file in enumerate(task.files):
        Place("read", file.index).mark()
        _foresee_files(task, place + 1, options)
        piece = task.piece
        if piece is None:
            slices = split_file(file, options, WHOLE_FILE_BYTES)
            if not len(slices.start):
                continue
            piece = slices.whole()
        for documents in read_documents(file, piece, options):
            yield file, documents
            if len(documents.rows):
                rows = documents.rows
                Place("read", file.index, int(rows[0]), int(rows[-1])).mark()


def _foresee_files(task: UnitTask, first: int, options: ReadOptions) -> None:
    """Begin to fetch the files of a unit that come next: there may be thousands of small ones."""
    for file in task.files[first : first + FILES_AHEAD]:
        foresee(file, task.piece, options)


class _Looking:
    """Whether units are done, asked before it is their turn: the answer may take a while to come."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, int], Future[bool]] = {}

    def begin(self, directory: str, unit: int) -> None:
        folder = folder_at(directory)
        if folder.is_remote:
            self._answers[directory, unit] = in_background().submit(folder.exists, part_name(unit))

    def is_done(self, folder: Folder, unit: int) -> bool:
        answer = self._answers.pop((folder.root, unit), None)
        return answer.result() if answer is not None else folder.exists(part_name(unit))


_looking = _Looking()


def unit_tokens(
    task: UnitTask, job: Job, tokenizer: Encoder, limits: Limits
) -> Iterator[tuple[SourceFile, Documents, Encoded]]:
    """The documents of a unit, nulls included, with the framed tokens of those that are not null, batch by batch."""
    for file, documents in unit_documents(task, limits.read_options(job)):
        present = documents.without_nulls()
        yield file, documents, document_tokens(file, present, job, tokenizer, limits)
        tokenizer.trim(limits.worker_bytes)


def document_tokens(file: SourceFile, present: Documents, job: Job, tokenizer: Encoder, limits: Limits) -> Encoded:
    """The framed tokens of some documents, none of which is null; the worker is marked to be at them."""
    rows = present.rows
    if len(rows):
        seconds = limits.document_seconds + (present.text.nbytes / SLOW_BYTES if len(rows) > 1 else 0.0)
        Place("encode", file.index, int(rows[0]), int(rows[-1])).mark(seconds)
    try:
        encoded = tokenizer.encode(present.text)
    except MismatchAt as mismatch:
        headline, row = mismatch.headline, rows[mismatch.position]
        raise EngineMismatch(f"{headline} (file {file.path}, row {row})") from None
    except CannotEncode as failure:
        where = (f"file         {file.path}", f"row          {rows[failure.position]}")
        raise CannotEncode(failure.headline, *where) from failure
    return framed(encoded, job.begin, job.end)


_loaded: dict[tuple[str, str, str], Tokenizer] = {}


def loaded_tokenizer(directory: str, job: Job, engine: str) -> Tokenizer:
    """This worker's tokenizer: built on first use, from the run's own copy of the vocabulary."""
    key = (directory, job.tokenizer.sha256, engine)
    if key not in _loaded:
        Place("load").mark()
        _loaded.clear()
        _loaded[key] = Tokenizer(job.tokenizer, vocabulary_content(directory, job), engine).ready()
    return _loaded[key]


def vocabulary_content(directory: str, job: Job) -> bytes:
    """The run's own copy of the vocabulary, checked by its hash: native code reads these bytes and no others."""
    return layout.read_vocabulary(folder_at(directory), job.tokenizer)
