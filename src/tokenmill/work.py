"""Run one unit: where reader, tokenizer and part meet. Everything here happens inside a worker.

A worker marks where it is, so that its death can be told with the rows it had (see places).
"""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec
import pyarrow as pa

from tokenmill import layout
from tokenmill.building import BuiltPart, PartBuilder
from tokenmill.errors import CorruptStore, EngineMismatch, StoreError, TokenizerError
from tokenmill.framing import framed
from tokenmill.job import Job
from tokenmill.part import PartSummary, check_content, check_part, is_cut_off, open_part, part_name, read_summary
from tokenmill.places import USUAL_SECONDS, Place
from tokenmill.planning import UnitTask
from tokenmill.sources import foresee, read_documents, split_file
from tokenmill.sources.documents import Documents, ReadOptions, SourceFile
from tokenmill.storage import Folder, Overtaken, folder_at, in_background, in_turn
from tokenmill.tokenizers.engine import CannotEncode, Encoded
from tokenmill.tokenizers.tokenizer import REFERENCES, MismatchAt, Tokenizer

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

ANY_SLICE = ""
"""Given to CheckParts in place of a digest, for a part whose slice is not known before."""

REPLACE_ATTEMPTS = 5
"""How often a part is published again that another driver, which does not know of the recheck, published first."""

WORKER_BASE_BYTES = 250 << 20
"""What a worker holds beside the document at hand: its libraries and its engine."""

DOCUMENT_COPIES = {"tiktoken": 9, "huggingface": 170}
"""How many times its size a document takes at most, by the kind of its reference engine. Measured on multilingual
text: gigatoken 5.6, tiktoken 8.0, tokenizers 161."""

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
    """What a worker may use, and what becomes of rows that cannot be documents.

    `alone_bytes` is what a worker may hold while no other one works.
    """

    worker_bytes: int
    alone_bytes: int | None = None
    document_seconds: float = USUAL_SECONDS
    on_bad: str = "fail"
    with_text: bool = False

    def read_options(self, job: Job, *, sparing: bool = False) -> ReadOptions:
        """How the sources are read: by and by, and a little at a time where memory matters more than speed."""
        batch_bytes = min(MOST_BATCH_BYTES, max(LEAST_BATCH_BYTES, self.worker_bytes // BATCHES_IN_WORKER))
        batch_bytes = SPARING_BATCH_BYTES if sparing else batch_bytes
        return ReadOptions(job.column, job.separator, batch_bytes, self.on_bad, job.document_bytes)


class Committed(msgspec.Struct, frozen=True):
    """What a worker reports about a committed unit. `found` is set if another driver's part was there already.

    `mismatch` is set if the fast engine has failed an audit in this worker.
    """

    summary: PartSummary
    engine: str
    notices: tuple[str, ...] = ()
    found: bool = False
    mismatch: bool = False


def fast_bytes(document_bytes: int) -> int:
    """What a worker may take for a document of this size, unless `tokenizers` has to encode it."""
    return WORKER_BASE_BYTES + DOCUMENT_COPIES["tiktoken"] * document_bytes


def needed_bytes(job: Job, document_bytes: int) -> int:
    """What a worker may take for a document of this size, whichever engine encodes it."""
    return WORKER_BASE_BYTES + DOCUMENT_COPIES[job.tokenizer.kind] * document_bytes


@dataclass(frozen=True, slots=True)
class Tokenize:
    """The function that turns a unit into a part of the store in `directory`.

    `reference_version` is that of the library that defines the tokens, as the run was started with. With `recheck` the
    unit is done by the reference engine, and a part that is there is kept only if it is equal.
    """

    directory: str
    job: Job
    engine: str
    limits: Limits
    reference_version: str = ""
    recheck: bool = False

    def foresee(self, task: UnitTask) -> None:
        """Begin to find out whether a unit is done, and to fetch what it reads, while another one is done."""
        for name in done_names(task.unit, recheck=self.recheck):
            _looking.begin(self.directory, name)
        _foresee_files(task, 0, self.limits.read_options(self.job))

    def __call__(self, task: UnitTask) -> Committed | Future[Committed]:
        """Read, encode and publish one unit; a failed audit starts it again with the reference engine.

        A unit that has its part already is skipped: another process published it. Where publishing takes a network, it
        goes on in the background.
        """
        Place("begin").mark()
        folder = folder_at(self.directory)
        answers = [_looking.exists(folder, name) for name in done_names(task.unit, recheck=self.recheck)]
        if all(answers):
            return found(folder, task.unit, self.engine)
        tokenizer = loaded_tokenizer(self.directory, self.job, self.engine, self.reference_version)
        builder = tokenizer.give_up_if_wrong(lambda: self._encode(task, tokenizer))
        Place("write").mark()
        commit = Commit(folder, builder, self.recheck).by(tokenizer)
        return in_background().submit(commit) if folder.is_remote else commit()

    def _encode(self, task: UnitTask, tokenizer: Tokenizer) -> PartBuilder:
        builder = PartBuilder(self.job, task, self.limits.with_text)
        for file, documents, encoded in unit_tokens(task, self.job, tokenizer, self.limits):
            builder.leave_out(file, documents)
            builder.add(file, documents.without_nulls(), encoded)
        return builder


class InvalidPart(msgspec.Struct, frozen=True):
    """A part that is damaged, or that was made from something else than its unit."""

    unit: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckParts:
    """The function that reads the summaries of parts, and finds those that do not belong to their unit.

    It takes units with the digests of their slices. With `content_too` each part is read whole and hashed.
    """

    directory: str
    job: Job
    content_too: bool = False

    def __call__(self, parts: tuple[tuple[int, str], ...]) -> list[PartSummary | InvalidPart]:
        """A summary, or what is wrong, for each part in the order asked for."""
        folder = folder_at(self.directory)
        return list(in_turn(folder, partial(self._check, folder, self.job.digest()), parts, HEADERS_AHEAD))

    def _check(self, folder: Folder, job: str, part: tuple[int, str]) -> PartSummary | InvalidPart:
        unit, slice_digest = part
        try:
            if is_cut_off(folder, unit):
                return InvalidPart(unit, "its end is missing")
            summary = check_part(folder, unit, self.job) if self.content_too else read_summary(folder, unit)
        except CorruptStore as error:
            return InvalidPart(unit, next((line for line in error.details if line.startswith("found")), error.headline))
        if summary.job != job:
            return InvalidPart(unit, "it belongs to another job")
        if slice_digest not in (summary.slice, ANY_SLICE):
            return InvalidPart(unit, "it was made from another slice of the sources")
        return summary


def found(folder: Folder, unit: int, engine: str) -> Committed:
    """Report a part that is there already."""
    return Committed(read_summary(folder, unit), engine, found=True)


def done_names(unit: int, *, recheck: bool) -> list[str]:
    """The files whose existence means that a unit is done."""
    return [part_name(unit), layout.rechecked_name(unit)] if recheck else [part_name(unit)]


@dataclass(slots=True)
class Commit:
    """The function that publishes a part and reports it, or reports the one that another machine published first.

    With `recheck` a part that is there is replaced unless it is equal, and the unit is marked as rechecked.
    """

    folder: Folder
    builder: PartBuilder
    recheck: bool
    engine: str = ""
    notices: tuple[str, ...] = ()
    mismatch: bool = False

    def by(self, tokenizer: Tokenizer) -> Commit:
        """The same, for what this tokenizer encoded. A failed audit is recorded before anything is published."""
        self.engine, self.notices = tokenizer.engine, tokenizer.take_notices()
        if tokenizer.mismatch is not None:
            mismatch = layout.EngineMismatch("gigatoken", tokenizer.mismatch)
            layout.publish_mismatch(self.folder, mismatch)
            self.mismatch = self.recheck = True
        return self

    def __call__(self) -> Committed:
        """Publish the part."""
        part, unit = self.builder.finish(), self.builder.task.unit
        if self.recheck:
            self._replace(part)
            self.folder.settle(layout.PARTS)  # the mark below must not outlive the part in a loss of power
            self.folder.create(layout.RECHECKED)
            self.folder.publish_new(layout.rechecked_name(unit), b"")
        else:
            try:
                part.publish(self.folder)
            except Overtaken:
                return found(self.folder, unit, self.engine)
        return Committed(part.summary, self.engine, self.notices, mismatch=self.mismatch)

    def _replace(self, part: BuiltPart) -> None:
        """Have exactly this part in the store, whatever was there."""
        name = part_name(part.summary.unit)
        for _ in range(REPLACE_ATTEMPTS):
            if self.folder.exists(name):
                if is_equal(self.folder, part.summary):
                    return
                layout.withdraw_manifest(self.folder)
                self.folder.discard(name)
            try:
                part.publish(self.folder)
            except Overtaken:
                continue
            return
        raise StoreError(f"another process keeps writing {self.folder.path(name)}")


def is_equal(folder: Folder, expected: PartSummary) -> bool:
    """Whether the part of a unit is there, undamaged, and equal to the one with this summary."""
    try:
        summary, content = open_part(folder, expected.unit)
        check_content(folder, summary, content)
    except CorruptStore:
        return False
    return summary == expected


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
    """Whether files exist, asked before the answer is needed: it may take a while to come."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], Future[bool]] = {}

    def begin(self, directory: str, name: str) -> None:
        folder = folder_at(directory)
        if folder.is_remote:
            self._answers[directory, name] = in_background().submit(folder.exists, name)

    def exists(self, folder: Folder, name: str) -> bool:
        answer = self._answers.pop((folder.root, name), None)
        # An answer may be left of an earlier store at the same address: what it found is looked at again.
        return (answer is None or answer.result()) and folder.exists(name)


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


def loaded_tokenizer(directory: str, job: Job, engine: str, reference_version: str = "") -> Tokenizer:
    """This worker's tokenizer: built on first use, from the run's own copy of the vocabulary."""
    key = (directory, job.tokenizer.sha256, engine)
    if key not in _loaded:
        Place("load").mark()
        check_reference(job, reference_version)
        _loaded.clear()
        _loaded[key] = Tokenizer(job.tokenizer, vocabulary_content(directory, job), engine).ready()
    return _loaded[key]


def check_reference(job: Job, expected: str) -> None:
    """Refuse to work with another version of the library that defines the tokens than the run was started with."""
    name = REFERENCES[job.tokenizer.kind].name
    actual = importlib.metadata.version(name)
    if expected and actual != expected:
        raise TokenizerError(
            f"a worker has {name} {actual}, and the run was started with {expected}",
            f"host         {platform.node()}",
            f"Install {name}=={expected} on every machine of the run.",
        )


def vocabulary_content(directory: str, job: Job) -> bytes:
    """The run's own copy of the vocabulary, checked by its hash: native code reads these bytes and no others."""
    return layout.read_vocabulary(folder_at(directory), job.tokenizer)
