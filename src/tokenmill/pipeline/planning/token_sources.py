"""From the options about sources of tokens, and a sample of them, to what a job has to know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import SourceError, UsageError
from tokenmill.executors.fan_out import run_all
from tokenmill.executors.outcomes import Executor
from tokenmill.humanize import count
from tokenmill.options import JobOptions
from tokenmill.pipeline.planning.pieces import option_name
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.documents import MIN_BATCH_BYTES, unit_rows
from tokenmill.pipeline.unit.plan import UnitTask
from tokenmill.sources.documents import ReadOptions
from tokenmill.sources.token_source import DOCUMENTS, ID_TYPE, OVERLAP, STREAM, TO_BE_FOUND, TokenInput
from tokenmill.sources.tokens.find import DELIMITED
from tokenmill.storage.arrow_text import text_buffers
from tokenmill.store.job import Job
from tokenmill.tokenization.boundary_tokens import boundary_token
from tokenmill.tokenization.spec import TokenizerSpec

# The options that mean nothing without tokens in the sources.
TOKEN_OPTIONS = ("source_tokenizer", "source_bos", "source_eot", "rows")
# What needs text, and what needs its columns, too.
OF_TEXT = ("special", "fim_rate")
OF_COLUMNS = ("template_special", "prefix")
# How many documents of how many units are looked at.
MAX_UNITS, MAX_DOCUMENTS = 16, 100
# In so many documents of a sample a token has to be at the same place to belong to the frame.
FRAME_SHARE = 0.95
# So many rows of one length, which is at least this long, are rows of a stream.
MIN_ROWS, MIN_ROW_TOKENS = 16, 128

# The digits of the length of a row, and its least tokens.
MAX_DIGITS, MIN_LENGTH = 9, 2

Ids = npt.NDArray[np.uint32]


def token_source(options: JobOptions, spec: TokenizerSpec, *, are_files: bool) -> TokenInput | None:
    """Where the tokens of the sources are; None if they hold text. Raises UsageError for contradictions."""
    if options.tokens_column is None and not are_files:
        given = next((name for name in TOKEN_OPTIONS if getattr(options, name) is not None), None)
        if given is not None:
            raise UsageError(f"{option_name(given)} needs --tokens-column", "It is about sources that hold tokens.")
        return None
    for name in (*OF_COLUMNS, *(OF_TEXT if options.source_tokenizer is None else ())):
        if getattr(options, name) is not None:
            what = "files of tokens" if are_files else "--tokens-column"
            raise UsageError(f"{option_name(name)} cannot be used with {what}", "It is about text.")
    rows, row_tokens = _parse_rows(options.rows, are_files=are_files)
    is_stream = rows == OVERLAP or (rows == STREAM and not are_files)
    for name in ("where", "keep", "source_bos", "dedup", "min_tokens", "max_tokens", "deny") if is_stream else ():
        if getattr(options, name) is not None:
            advice = "A row is no document, and a document may have many rows."
            raise UsageError(f"{option_name(name)} cannot be used with --rows {options.rows}", advice)
    begin = None if is_stream else boundary_token(spec, "--source-bos", options.source_bos, TO_BE_FOUND)
    end = boundary_token(spec, "--source-eot", options.source_eot, TO_BE_FOUND)
    return TokenInput(column=options.tokens_column or "", rows=rows, begin=begin, end=end, row_tokens=row_tokens)


def _parse_rows(given: str | None, *, are_files: bool) -> tuple[str, int]:
    """What a row is, and how long it is if `--rows` tells it."""
    rows, colon, length = (given or "").partition(":")
    if given is not None and rows not in (DOCUMENTS, STREAM, OVERLAP):
        raise UsageError(f"--rows is documents, stream or overlap, not {given!r}")
    if not colon:
        return rows, 0
    if not are_files or rows == STREAM:
        raise UsageError(f"--rows {given} has no effect", f"These rows have a length. Use --rows {rows}.")
    if not length.isdecimal() or len(length) > MAX_DIGITS or int(length) < MIN_LENGTH:
        raise UsageError(f"--rows {given} is not a number of tokens", f"Give a whole number: --rows {rows}:2048.")
    return rows, int(length)


def options_of_tokens(tokens: TokenInput | None) -> dict[str, Any]:
    """The options that another store takes from sources of tokens."""
    return {} if tokens is None else {"tokens_column": tokens.column or None}


def with_frame_of(tokens: TokenInput | None, before: TokenInput | None) -> TokenInput | None:
    """What a call says of its sources, with what an earlier call has found where it says nothing."""
    if tokens is None or before is None:
        return tokens
    frame = {name: getattr(before, name) for name in ("begin", "end") if getattr(tokens, name) == TO_BE_FOUND}
    return msgspec.structs.replace(tokens, rows=tokens.rows or before.rows, **frame)


@dataclass(frozen=True, slots=True)
class TokenSample:
    """Some documents of a unit: their ids one after the other, and the offsets of the documents."""

    ids: Ids
    offsets: npt.NDArray[np.int64]

    def documents(self) -> list[Ids]:
        """The ids of each document."""
        return np.split(self.ids, self.offsets[1:-1])


@dataclass(frozen=True, slots=True)
class ReadSample:
    """The function that reads the first documents of a unit, with their frame."""

    options: ReadOptions

    def __call__(self, task: UnitTask) -> TokenSample:
        """At most MAX_DOCUMENTS documents."""
        for _, documents in unit_rows(task, self.options):
            present = documents.without_nulls().slice(0, MAX_DOCUMENTS)
            if len(present.rows):
                data, offsets = text_buffers(present.text)
                return TokenSample(data.view(ID_TYPE), offsets // np.dtype(ID_TYPE).itemsize)
        return TokenSample(np.empty(0, ID_TYPE), np.zeros(1, np.int64))


def with_found_frame(job: Job, units: pa.Table, sources: pa.Table, executor: Executor) -> tuple[Job, tuple[str, ...]]:
    """The job with the frame of its sources, which is looked for in some units, and notes for the user."""
    if job.tokens is None or TO_BE_FOUND not in (job.tokens.begin, job.tokens.end):
        return job, ()
    is_delimited = bool(job.tokens.format) and sources["kind"][0].as_py() == DELIMITED
    bare = msgspec.structs.replace(job.tokens, rows=DOCUMENTS, begin=None, end=job.tokens.end if is_delimited else None)
    options = msgspec.structs.replace(job, tokens=bare).read_options(batch_bytes=MIN_BATCH_BYTES, on_bad="quarantine")
    tasks = plan.tasks(units, sources, plan.spread(len(units), MAX_UNITS).tolist() if len(units) else [])
    samples = run_all(executor, ReadSample(options), tasks, lambda task: f"unit {task.unit}")
    documents = [ids for done in samples for ids in done.value.documents() if len(ids)]
    rows = job.tokens.rows or _rows(documents, sources)
    framing = () if job.source_tokenizer else (token for token in (job.begin, job.end) if token is not None)
    control = sorted({*job.ids_tokenizer.special_tokens.values(), *framing})
    if rows != DOCUMENTS:
        end = _most_frequent(documents, control) if job.tokens.end == TO_BE_FOUND else job.tokens.end
        if end is None:
            raise SourceError(
                "the rows of the sources have no end token",
                f"file         {sources['path'][0]}",
                f"looked at    {count(len(documents), 'row')}",
                "Give it with --source-eot. Or take each row as it is: --rows documents.",
            )
        notes = [f"the sources divide documents by {job.ids_tokenizer.shown(end)}, which is removed"]
        return msgspec.structs.replace(job, tokens=msgspec.structs.replace(job.tokens, rows=rows, end=end)), tuple(
            notes
        )
    frame, notes = dict[str, int | None](), list[str]()
    for name, place in (("begin", 0), ("end", -1)):
        if getattr(job.tokens, name) == TO_BE_FOUND:
            frame[name] = token = _common([ids[place] for ids in documents], control)
            if token is not None:
                notes.append(f"the sources {name} documents with {job.ids_tokenizer.shown(token)}, which is removed")
    if job.tokens.format and not is_delimited:
        notes += _disagreeing(documents, frame.get("end", job.tokens.end))
    return msgspec.structs.replace(job, tokens=msgspec.structs.replace(job.tokens, rows=rows, **frame)), tuple(notes)


def _disagreeing(documents: list[Ids], end: int | None) -> list[str]:
    """The note that the index of files and their end tokens disagree in some documents of a sample."""
    if end is None:
        return []
    without = sum(int(ids[-1] != end) for ids in documents)
    merged = sum(bool((ids[:-1] == end).any()) for ids in documents)
    if not without and not merged:
        return []
    shown = f"of {count(len(documents), 'document')} of a sample, {without} do not end with the end token"
    return [f"the index of the sources and their end tokens disagree: {shown}, and {merged} have it inside"]


def _rows(documents: list[Ids], sources: pa.Table) -> str:
    """What the rows are if it is not given: documents. Raises SourceError if all rows of a sample have one length."""
    lengths = {len(ids) for ids in documents}
    if len(documents) < MIN_ROWS or len(lengths) > 1 or max(lengths) < MIN_ROW_TOKENS:
        return DOCUMENTS
    raise SourceError(
        f"all rows of the sources have {max(lengths):,} tokens, so they may not be documents",
        f"file         {sources['path'][0]}",
        f"looked at    {count(len(documents), 'row')}",
        "Say what a row is: --rows documents (each row is one), --rows stream (documents go on in the next row), or "
        "--rows overlap (the same, and each row begins with the last token of the row before).",
    )


def _most_frequent(documents: list[Ids], control: list[int]) -> int | None:
    """The control token that occurs most often."""
    ids = np.concatenate([np.empty(0, ID_TYPE), *documents])
    values, counts = np.unique(ids[np.isin(ids, control)], return_counts=True)
    return int(values[np.argmax(counts)]) if len(values) else None


def _common(tokens: list[Any], control: list[int]) -> int | None:
    """The control token that nearly all of these are."""
    if not tokens:
        return None
    values, counts = np.unique(tokens, return_counts=True)
    most = int(np.argmax(counts))
    is_frame = int(values[most]) in control and counts[most] >= FRAME_SHARE * len(tokens)
    return int(values[most]) if is_frame else None
