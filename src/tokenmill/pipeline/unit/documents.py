"""The documents and tokens of one unit, batch by batch. Runs in a worker."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from tokenmill.chat.renderer import CannotRender, Rendered
from tokenmill.chat.rendering import as_arrays, text_renderer
from tokenmill.errors import EngineMismatch, SourceError, TokenizerError
from tokenmill.pipeline.unit.encode import encode_documents
from tokenmill.pipeline.unit.plan import DEFAULT_SECONDS, Position, UnitTask
from tokenmill.pipeline.unit.store_unit import open_unit, unit_columns_of
from tokenmill.pipeline.unit.transcode import decoded, decoder
from tokenmill.sources import prefetch, read_documents
from tokenmill.sources.bad_rows import TOO_LONG, bad_row, raise_or_keep
from tokenmill.sources.documents import BadRow, Documents, ReadOptions, RowArray, Slice, SourceFile
from tokenmill.sources.line_numbers import place
from tokenmill.storage import Folder, folder_at, io_threads
from tokenmill.storage.digest import digest_of
from tokenmill.store.deny import DenyList, read_rules
from tokenmill.store.duplicates import DuplicateRows, read_duplicates
from tokenmill.store.job import Job, read_vocabulary
from tokenmill.store.member import whole_file
from tokenmill.store.part import DENIED, DUPLICATE
from tokenmill.tokenization.audit import AuditMismatchError
from tokenmill.tokenization.engines.ids import OutsideVocabulary
from tokenmill.tokenization.engines.protocol import CannotEncode, Encoded
from tokenmill.tokenization.resolve import resolve_offline
from tokenmill.tokenization.tokenizer import REFERENCES, Tokenizer, choose_engine

# The text of a batch, depending on the memory of a worker.
MAX_BATCH_BYTES = 4 << 20
MIN_BATCH_BYTES = 256 << 10

# The text of a batch in isolation, where memory matters more than speed.
SPARING_BATCH_BYTES = 64 << 10

# The ids of a batch that are read from a store and not decoded: a part has not more, so it is not joined of batches.
PART_BYTES = 1 << 62

# A worker gets at least this many times the text of a batch as memory; what is made of the text takes much less.
BATCHES_IN_WORKER = 128

# How many files of a unit are fetched while one is read.
PREFETCH_FILES = 8

# What a worker holds beside a document: its libraries and its engine.
WORKER_BASE_BYTES = 250 << 20

# How many times its size a document takes at most, by the kind of its reference engine. Measured on multilingual text:
# gigatoken 5.6, tiktoken 8.0, tokenizers 161.
DOCUMENT_COPIES = {"tiktoken": 9, "huggingface": 170}

# What the slowest engine encodes in a second. A batch of many documents gets more time the longer it is.
SLOW_BYTES = 250_000


class WorkerLimits(msgspec.Struct, frozen=True):
    """What a worker may use, and what it does with bad rows.

    `single_worker_bytes` is what a worker may hold while no other one works. `threads` share a large document.
    """

    worker_bytes: int
    single_worker_bytes: int | None = None
    document_seconds: float = DEFAULT_SECONDS
    on_bad: str = "fail"
    with_text: bool = False
    threads: int = 1

    def read_options(self, job: Job, *, sparing: bool = False) -> ReadOptions:
        """How the sources are read. `sparing` reads small batches, where memory matters more than speed."""
        batch_bytes = min(MAX_BATCH_BYTES, max(MIN_BATCH_BYTES, self.worker_bytes // BATCHES_IN_WORKER))
        if job.has_ids and job.source_store is not None:
            batch_bytes = PART_BYTES
        batch_bytes = SPARING_BATCH_BYTES if sparing else batch_bytes
        return job.read_options(batch_bytes=batch_bytes, on_bad=self.on_bad, document_bytes=job.document_bytes)

    def for_units(self, units: int, workers: int) -> WorkerLimits:
        """The same limits, with the threads of workers that have no unit of their own."""
        return msgspec.structs.replace(self, threads=max(1, workers // max(1, units)))


def fast_bytes(document_bytes: int) -> int:
    """The memory that a worker may take for a document of this size, unless `tokenizers` encodes it."""
    return WORKER_BASE_BYTES + DOCUMENT_COPIES["tiktoken"] * document_bytes


def needed_bytes(job: Job, document_bytes: int) -> int:
    """The memory that a worker may take for a document of this size, whichever engine encodes it."""
    return WORKER_BASE_BYTES + DOCUMENT_COPIES[job.tokenizer.kind] * document_bytes


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The rows that `--deny` and `--dedup` name. None stands for a list that the run does not have."""

    deny: DenyList | None = None
    duplicates: DuplicateRows | None = None

    def rows(
        self, task: UnitTask, file: SourceFile, file_slice: Slice | None, options: ReadOptions
    ) -> dict[str, RowArray]:
        """The rows of a slice that the lists name, in order, by the reason why they are left out."""
        rows = {} if self.duplicates is None else {DUPLICATE: self.duplicates.of(file.index)}
        if self.deny is not None:
            denied = [self.deny.rows_of(file.path)]
            if self.deny.columns:
                batches = unit_columns_of(task, file, file_slice, self.deny.columns, options)
                denied += [batch.rows[self.deny.matches(batch.values)] for batch in batches]
            rows[DENIED] = np.unique(np.concatenate(denied))
        return rows


NOTHING = LeftOut()

# Stands for a file of which a store holds the documents.
WHOLE = Slice(0, 0)


def left_out(directory: str, job: Job) -> LeftOut:
    """The lists of a run. A worker keeps them."""
    return _lists(directory, job.deny, job.dedup)


@functools.lru_cache(maxsize=1)
def _lists(directory: str, deny: str, dedup: str | None) -> LeftOut:
    folder = folder_at(directory)
    return LeftOut(
        read_rules(folder, deny) if deny else None, None if dedup is None else read_duplicates(folder, dedup)
    )


def _without_rows(documents: Documents, rows: dict[str, RowArray]) -> Documents:
    """The documents without these rows, which are listed instead, by the reason why they are left out."""
    for reason, numbers in rows.items():
        is_left_out = np.isin(documents.rows, numbers)
        if is_left_out.any():
            skipped = documents.skipped | {reason: np.unique(documents.rows[is_left_out])}
            documents = replace(documents.filter(~is_left_out), skipped=skipped)
    return documents


def unit_documents(  # noqa: PLR0913, PLR0917 - a unit of a store, and how it is read
    directory: str,
    task: UnitTask,
    job: Job,
    limits: WorkerLimits,
    left_out: LeftOut = NOTHING,
    options: ReadOptions | None = None,
) -> Iterator[tuple[SourceFile, Documents]]:
    """The documents of a unit, nulls included, in order, without the rows that are left out."""
    options = options or limits.read_options(job)
    for file, rows in unit_rows(task, options, left_out):
        yield file, rendered(directory, file, rows, job, limits)


def rendered(directory: str, file: SourceFile, rows: Documents, job: Job, limits: WorkerLimits) -> Documents:
    """The documents of some rows: the rows themselves, the text of their ids, or what the chat template makes of each.

    A row that it refuses, or that becomes too long, is a bad row. Each row is marked as the position of the worker.
    """
    if job.source_tokenizer is not None:
        decode = decoder(directory, job)
        return decoded(file, rows, decode, job, limits.read_options(job))
    if job.chat is None:
        return rows
    render = text_renderer(job.chat)
    indices, documents, bad = list[int](), list[Rendered | None](), list[BadRow]()
    for index, (row, text) in enumerate(zip(rows.rows.tolist(), rows.text.to_pylist(), strict=True)):
        Position("encode", file.index, row, row).mark(limits.document_seconds)
        try:
            made: Sequence[Rendered | None] = [None] if text is None else render(text)
        except CannotRender as error:
            bad.append(bad_row(row, error.reason, error.detail, text.encode()))
            continue
        except SourceError as error:
            where = f"file         {file.path}", f"found at     {place(file.kind, row)}"
            raise SourceError(error.headline, *where, *error.details) from error
        longest = max(0 if document is None else len(document.text.encode()) for document in made)
        if longest > job.document_bytes:
            bad.append(bad_row(row, TOO_LONG, f"{longest:,} bytes", text.encode()))
            continue
        indices += [index] * len(made)
        documents += made
    texts, trained = as_arrays(documents)
    numbers, bad_rows = rows.rows[np.array(indices, np.int64)], raise_or_keep(file, (*rows.bad, *bad), limits.on_bad)
    return replace(rows, text=texts, rows=numbers, bad=bad_rows, trained=trained)


def unit_rows(
    task: UnitTask, options: ReadOptions, left_out: LeftOut = NOTHING
) -> Iterator[tuple[SourceFile, Documents]]:
    """The rows of a unit as they are read, nulls included, in order, without those that are left out."""
    unit = open_unit(options.tokens, task.unit)
    for index, file in enumerate(task.files):
        Position("read", file.index).mark()
        prefetch_files(task, index + 1, options)
        file_slice = task.file_slice or (whole_file(file, options) if unit is None else WHOLE)
        if file_slice is None:
            continue
        rows_left_out = left_out.rows(task, file, file_slice, options)
        for read in read_documents(file, file_slice, options) if unit is None else unit.documents(file, options):
            documents = _without_rows(read, rows_left_out)
            yield file, documents
            if len(documents.rows):
                rows = documents.rows
                Position("read", file.index, int(rows[0]), int(rows[-1])).mark()


def prefetch_files(task: UnitTask, first: int, options: ReadOptions) -> None:
    """Start to fetch the next files of a unit: there may be thousands of small ones."""
    for file in task.files[first : first + PREFETCH_FILES] if options.store is None else ():
        prefetch(file, task.file_slice, options)


class _ExistenceCheck:
    """Looks for files in remote stores ahead of time, because an answer takes a round trip."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, str], Future[bool]] = {}

    def begin(self, directory: str, name: str) -> None:
        folder = folder_at(directory)
        if folder.is_remote:
            self._answers[directory, name] = io_threads().submit(folder.exists, name)

    def exists(self, folder: Folder, name: str) -> bool:
        answer = self._answers.pop((folder.root, name), None)
        # The answer may be about an earlier store at the same address, so a yes is checked again.
        return (answer is None or answer.result()) and folder.exists(name)


existence = _ExistenceCheck()


def unit_tokens(  # noqa: PLR0913, PLR0917 - a unit of a store, and how it is encoded
    directory: str, task: UnitTask, job: Job, tokenizer: Tokenizer, limits: WorkerLimits, left_out: LeftOut = NOTHING
) -> Iterator[tuple[SourceFile, Documents, Encoded]]:
    """The documents of a unit, nulls included, with the framed tokens of those that are not null, batch by batch."""
    for file, documents in unit_documents(directory, task, job, limits, left_out):
        present = documents.without_nulls()
        yield file, documents, document_tokens(file, present, job, tokenizer, limits)
        tokenizer.trim(limits.worker_bytes)


def document_tokens(
    file: SourceFile, present: Documents, job: Job, tokenizer: Tokenizer, limits: WorkerLimits
) -> Encoded:
    """The framed tokens of some documents, none of which is null. Marks them as the position of the worker."""
    rows = present.rows
    if len(rows):
        seconds = limits.document_seconds + (present.text.nbytes / SLOW_BYTES if len(rows) > 1 else 0.0)
        Position("encode", file.index, int(rows[0]), int(rows[-1])).mark(seconds)
    try:
        return encode_documents(file, present, job, tokenizer)
    except AuditMismatchError as mismatch:
        headline, row = mismatch.headline, rows[mismatch.position]
        raise EngineMismatch(f"{headline} (file {file.path}, {place(file.kind, row)})") from None
    except CannotEncode as failure:
        where = (f"file         {file.path}", f"found at     {place(file.kind, rows[failure.position])}")
        raise CannotEncode(failure.headline, *where) from failure
    except OutsideVocabulary as failure:
        where = (f"file         {file.path}", f"found at     {place(file.kind, rows[failure.position])}")
        raise OutsideVocabulary(failure.headline, *where, "The tokens are those of another tokenizer.") from failure


_loaded: dict[tuple[str, str, str], Tokenizer] = {}
_preloaded: list[Tokenizer] = []


def preload_tokenizer(name: str, engine: str) -> None:
    """Load a tokenizer in the fork server, for its workers. Does not use the network."""
    vocabulary = resolve_offline(name)
    if vocabulary is not None:
        chosen = choose_engine(vocabulary, engine).engine
        _preloaded.append(Tokenizer(vocabulary.spec, vocabulary.content, chosen).load())


def loaded_tokenizer(directory: str, job: Job, engine: str, reference_version: str = "", at_once: int = 1) -> Tokenizer:
    """The tokenizer of a store, built on first use from the run's own copy of the vocabulary.

    A worker keeps the last ones, `at_once` of them.
    """
    spec = job.encoder
    key = (directory, digest_of(spec), engine)
    if key not in _loaded:
        Position("load").mark()
        check_reference(job, reference_version)
        for old in list(_loaded)[: max(0, len(_loaded) - at_once + 1)]:
            del _loaded[old]
        content = vocabulary_content(directory, job)
        ready = (each for each in _preloaded if each.spec == spec and each.engine == engine)
        _loaded[key] = next(ready, None) or Tokenizer(spec, content, engine).load()
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
    """The run's own copy of the vocabulary. Its hash is checked before native code reads it."""
    return read_vocabulary(folder_at(directory), job.tokenizer)
