"""The documents and tokens of one unit, batch by batch. Runs in a worker."""

from __future__ import annotations

import importlib.metadata
import platform
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Protocol

import msgspec
import pyarrow as pa

from tokenmill.errors import EngineMismatch, TokenizerError
from tokenmill.pipeline.plan import UnitTask
from tokenmill.pipeline.position import DEFAULT_SECONDS, Position
from tokenmill.sources import prefetch, read_documents, split_file
from tokenmill.sources.documents import Documents, ReadOptions, SourceFile
from tokenmill.storage import Folder, folder_at, io_threads
from tokenmill.store import layout
from tokenmill.store.job import Job
from tokenmill.tokenizers.audit import MismatchAt
from tokenmill.tokenizers.engines.protocol import CannotEncode, Encoded
from tokenmill.tokenizers.framing import framed
from tokenmill.tokenizers.tokenizer import REFERENCES, Tokenizer

WHOLE_FILE_BYTES = 1 << 62


MAX_BATCH_BYTES = 4 << 20


MIN_BATCH_BYTES = 256 << 10


SPARING_BATCH_BYTES = 64 << 10


BATCHES_IN_WORKER = 128
"""How many times the text of a batch a worker has in memory, with all that is made of it, and much to spare."""


PREFETCH_FILES = 8
"""How many files of a unit are on their way while one is read."""


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


class WorkerLimits(msgspec.Struct, frozen=True):
    """What a worker may use, and what becomes of rows that cannot be documents.

    `single_worker_bytes` is what a worker may hold while no other one works.
    """

    worker_bytes: int
    single_worker_bytes: int | None = None
    document_seconds: float = DEFAULT_SECONDS
    on_bad: str = "fail"
    with_text: bool = False

    def read_options(self, job: Job, *, sparing: bool = False) -> ReadOptions:
        """How the sources are read: by and by, and a little at a time where memory matters more than speed."""
        batch_bytes = min(MAX_BATCH_BYTES, max(MIN_BATCH_BYTES, self.worker_bytes // BATCHES_IN_WORKER))
        batch_bytes = SPARING_BATCH_BYTES if sparing else batch_bytes
        return ReadOptions(job.column, job.separator, batch_bytes, self.on_bad, job.document_bytes)


def fast_bytes(document_bytes: int) -> int:
    """What a worker may take for a document of this size, unless `tokenizers` has to encode it."""
    return WORKER_BASE_BYTES + DOCUMENT_COPIES["tiktoken"] * document_bytes


def needed_bytes(job: Job, document_bytes: int) -> int:
    """What a worker may take for a document of this size, whichever engine encodes it."""
    return WORKER_BASE_BYTES + DOCUMENT_COPIES[job.tokenizer.kind] * document_bytes


def unit_documents(task: UnitTask, options: ReadOptions) -> Iterator[tuple[SourceFile, Documents]]:
    """The documents of a unit, nulls included, in order."""
    for place, file in enumerate(task.files):
        Position("read", file.index).mark()
        _prefetch_files(task, place + 1, options)
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
                Position("read", file.index, int(rows[0]), int(rows[-1])).mark()


def _prefetch_files(task: UnitTask, first: int, options: ReadOptions) -> None:
    """Begin to fetch the files of a unit that come next: there may be thousands of small ones."""
    for file in task.files[first : first + PREFETCH_FILES]:
        prefetch(file, task.piece, options)


class _ExistenceCheck:
    """Whether files exist, asked before the answer is needed: it may take a while to come."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], Future[bool]] = {}

    def begin(self, directory: str, name: str) -> None:
        folder = folder_at(directory)
        if folder.is_remote:
            self._answers[directory, name] = io_threads().submit(folder.exists, name)

    def exists(self, folder: Folder, name: str) -> bool:
        answer = self._answers.pop((folder.root, name), None)
        # An answer may be left of an earlier store at the same address: what it found is looked at again.
        return (answer is None or answer.result()) and folder.exists(name)


_existence = _ExistenceCheck()


def unit_tokens(
    task: UnitTask, job: Job, tokenizer: Encoder, limits: WorkerLimits
) -> Iterator[tuple[SourceFile, Documents, Encoded]]:
    """The documents of a unit, nulls included, with the framed tokens of those that are not null, batch by batch."""
    for file, documents in unit_documents(task, limits.read_options(job)):
        present = documents.without_nulls()
        yield file, documents, document_tokens(file, present, job, tokenizer, limits)
        tokenizer.trim(limits.worker_bytes)


def document_tokens(
    file: SourceFile, present: Documents, job: Job, tokenizer: Encoder, limits: WorkerLimits
) -> Encoded:
    """The framed tokens of some documents, none of which is null; the worker is marked to be at them."""
    rows = present.rows
    if len(rows):
        seconds = limits.document_seconds + (present.text.nbytes / SLOW_BYTES if len(rows) > 1 else 0.0)
        Position("encode", file.index, int(rows[0]), int(rows[-1])).mark(seconds)
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
        Position("load").mark()
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
