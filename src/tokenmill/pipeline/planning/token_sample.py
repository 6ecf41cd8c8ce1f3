"""Looks at a sample of the tokens of the sources: the frame of documents, what rows are, and whose tokens they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import SourceError
from tokenmill.executors.fan_out import run_all
from tokenmill.executors.outcomes import Executor
from tokenmill.humanize import count
from tokenmill.pipeline.planning.request import PrepareRequest
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.documents import MIN_BATCH_BYTES, unit_rows
from tokenmill.pipeline.unit.plan import UnitTask
from tokenmill.sources.documents import ReadOptions
from tokenmill.sources.token_source import DOCUMENTS, ID_TYPE, TO_BE_FOUND, TokenInput
from tokenmill.sources.tokens.find import DELIMITED
from tokenmill.storage.arrow_text import text_buffers
from tokenmill.store.job import Job
from tokenmill.tokenization.round_trip import check_tokens, refuse_tokens

# How many documents of how many units are looked at.
MAX_UNITS, MAX_DOCUMENTS = 16, 100
# In so many documents of a sample a token has to be at the same place to belong to the frame.
FRAME_SHARE = 0.95
# So many rows of one length, which is at least this long, are rows of a stream.
MIN_ROWS, MIN_ROW_TOKENS = 16, 128

Ids = npt.NDArray[np.uint32]


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


@dataclass(frozen=True, slots=True)
class _Found:
    """What a sample shows: the tokens of the sources as the job has them, its documents without frame, and notes."""

    tokens: TokenInput
    documents: list[Ids]
    notes: tuple[str, ...]


def with_found_frame(
    request: PrepareRequest, units: pa.Table, sources: pa.Table, executor: Executor
) -> tuple[Job, tuple[str, ...], dict[str, int]]:
    """The job with the frame of its sources, which is looked for in a sample, notes, and the counts of the check.

    Raises UsageError if the sampled documents are probably those of another tokenizer.
    """
    job, tokens = request.job, request.job.tokens
    if tokens is None or request.source is not None:
        return job, (), {}
    if request.trust_tokens and TO_BE_FOUND not in (tokens.begin, tokens.end) and tokens.rows:
        return job, (), {}
    found = _look(job, tokens, units, sources, executor)
    job = msgspec.structs.replace(job, tokens=found.tokens)
    if request.trust_tokens or not found.documents:
        return job, found.notes, {}
    vocabulary = request.source_vocabulary or request.vocabulary
    check = check_tokens(vocabulary, found.documents, is_cut=found.tokens.rows != DOCUMENTS)
    refuse_tokens(check, sources["path"][0].as_py())
    share = f"{check.equal:,} of {count(check.documents, 'sampled document')}"
    counts = {name: getattr(check, name) for name in ("documents", "equal", "differs", "not_utf8")}
    return job, (*found.notes, f"{share} have the ids that {vocabulary.spec.name} gives for their text"), counts


def _look(job: Job, tokens: TokenInput, units: pa.Table, sources: pa.Table, executor: Executor) -> _Found:
    """Read a sample with the frame of the sources, and find what is to be found."""
    is_delimited = bool(tokens.format) and sources["kind"][0].as_py() == DELIMITED
    bare = msgspec.structs.replace(tokens, rows=DOCUMENTS, begin=None, end=tokens.end if is_delimited else None)
    options = msgspec.structs.replace(job, tokens=bare).read_options(batch_bytes=MIN_BATCH_BYTES, on_bad="quarantine")
    tasks = plan.tasks(units, sources, plan.spread(len(units), MAX_UNITS).tolist() if len(units) else [])
    samples = run_all(executor, ReadSample(options), tasks, lambda task: f"unit {task.unit}")
    documents = [ids for done in samples for ids in done.value.documents() if len(ids)]
    rows = tokens.rows or _rows(documents, sources)
    framing = () if job.source_tokenizer else (token for token in (job.begin, job.end) if token is not None)
    control = sorted({*job.ids_tokenizer.special_tokens.values(), *framing})
    if rows != DOCUMENTS:
        end = _most_frequent(documents, control) if tokens.end == TO_BE_FOUND else tokens.end
        if end is None:
            raise SourceError(
                "the rows of the sources have no end token",
                f"file         {sources['path'][0]}",
                f"looked at    {count(len(documents), 'row')}",
                "Give it with --source-eot. Or take each row as it is: --rows documents.",
            )
        note = f"the sources divide documents by {job.ids_tokenizer.shown(end)}, which is removed"
        return _Found(msgspec.structs.replace(tokens, rows=rows, end=end), documents, (note,))
    frame: dict[str, Any] = {"begin": tokens.begin, "end": tokens.end}
    notes = list[str]()
    leading = _end_before_begin(job, tokens, documents)
    if leading is not None:
        frame |= {"end": leading, "end_first": True}
        documents = [np.roll(ids, -int(ids[0] == leading)) for ids in documents]
        notes.append(f"the sources begin documents with {job.ids_tokenizer.shown(leading)}, which is removed")
    for name, place in (("begin", 0), ("end", -1)):
        if frame[name] == TO_BE_FOUND:
            frame[name] = token = _common([ids[place] for ids in documents], control)
            if token is not None:
                notes.append(f"the sources {name} documents with {job.ids_tokenizer.shown(token)}, which is removed")
    if tokens.format and not is_delimited:
        notes += _disagreeing(documents, frame["end"])
    begin, end = frame["begin"], frame["end"]
    inner = [ids[int(begin == ids[0]) : len(ids) - int(end == ids[-1])] for ids in documents]
    return _Found(msgspec.structs.replace(tokens, rows=rows, **frame), inner, tuple(notes))


def _end_before_begin(job: Job, tokens: TokenInput, documents: list[Ids]) -> int | None:
    """The end token of the job if documents begin with it and then the begin token, as an export can have them."""
    begin = job.begin if tokens.begin == TO_BE_FOUND else tokens.begin
    if tokens.end != TO_BE_FOUND or job.source_tokenizer or None in (job.end, begin) or job.end == begin:
        return None
    starts = [tuple(ids[:2].tolist()) for ids in documents]
    return job.end if starts.count((job.end, begin)) >= max(FRAME_SHARE * len(starts), 1) else None


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
    """The control token that nearly all of these are. Of 10 or more, one may be another: a document may be cut off."""
    if not tokens:
        return None
    values, counts = np.unique(tokens, return_counts=True)
    most = int(np.argmax(counts))
    needed = min(FRAME_SHARE * len(tokens), max(len(tokens) - 1, 9))
    is_frame = int(values[most]) in control and counts[most] >= needed
    return int(values[most]) if is_frame else None
