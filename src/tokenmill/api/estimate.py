"""The dry run: what a job would read, write and take, from the sources' own figures and a small encoded sample."""

from __future__ import annotations

import os
import tempfile
import time
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tokenmill import planning
from tokenmill.api.request import Request, Words, choose_means, find_sources, make_request
from tokenmill.sources.documents import Documents
from tokenmill.tokenizers.tokenizer import Tokenizer
from tokenmill.work import unit_documents

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

SAMPLED_UNITS = 8
START_SECONDS = 1.5
SAMPLE_BYTES = 1 << 20
ROW_BYTES = 8 + 4 + 8
"""What a document takes in a part beside its tokens: offset, source, row."""


class Estimate(msgspec.Struct, frozen=True):
    """What a run would come to. Tokens, disk and time are estimated from a sample; the rest is counted."""

    tokenizer: str
    engine: str
    begin_token: int | None
    end_token: int | None
    sources: int
    source_bytes: int
    units: int
    unit_bytes: int
    text_bytes: int
    rows: int | None
    tokens: int
    bytes_per_token: float
    disk_bytes: int
    workers: int
    seconds: float
    ignored: list[str]


def plan(  # noqa: PLR0913 - the options of the command, by their names
    sources: str | Sequence[str],
    *,
    tokenizer: str,
    column: str = "text",
    separator: str | None = None,
    engine: str = "auto",
    eot: str | int | None = None,
    bos: str | int | None = None,
    workers: int | None = None,
    memory: str | int | None = None,
    unit_bytes: str | int | None = None,
    limit_units: int | None = None,
) -> Estimate:
    """Say what `prepare` would do with the same arguments, without doing it."""
    words = Words(sources, tokenizer, column, separator, engine, eot, bos, unit_bytes, limit_units)
    discovery = find_sources(words)
    request = make_request(words, discovery)
    units = planning.build(discovery.table, request.options, request.job.unit_bytes, limit_units)
    means = choose_means(workers, memory, most_workers=len(units))
    text_bytes = int(units["text_bytes"].to_numpy().sum())
    sample = _measure(request, units)
    rows = None if units["rows"].null_count else int(units["rows"].to_numpy().sum())
    documents = rows if rows is not None else round(text_bytes * sample.documents_per_byte)
    tokens = round(text_bytes * sample.tokens_per_byte)
    token_bytes = np.dtype(request.job.tokenizer.dtype).itemsize
    return Estimate(
        tokenizer=request.job.tokenizer.name,
        engine=request.choice.engine,
        begin_token=request.job.begin,
        end_token=request.job.end,
        sources=len(discovery.table),
        source_bytes=request.source_bytes,
        units=len(units),
        unit_bytes=request.job.unit_bytes,
        text_bytes=text_bytes,
        rows=rows,
        tokens=tokens,
        bytes_per_token=round(text_bytes / tokens, 2) if tokens else 0.0,
        disk_bytes=tokens * token_bytes + documents * ROW_BYTES,
        workers=means.workers,
        seconds=round(START_SECONDS + text_bytes * sample.seconds_per_byte / means.workers, 1),
        ignored=discovery.ignored,
    )


class _Sample(msgspec.Struct, frozen=True):
    tokens_per_byte: float
    documents_per_byte: float
    seconds_per_byte: float


def _measure(request: Request, units: pa.Table) -> _Sample:
    """Encode a little text from units spread over the corpus; small samples run cold, so times are an upper bound."""
    text_bytes = documents = tokens = 0
    seconds = 0.0
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, request.job.tokenizer.file)
        with open(path, "wb") as file:
            file.write(request.vocabulary.content)
        tokenizer = Tokenizer(request.job.tokenizer, path, request.choice.engine)
        boundaries = (request.job.begin is not None) + (request.job.end is not None)
        for batch in _sample_documents(request, units):
            started = time.monotonic()
            encoded = tokenizer.encode(batch.text)
            seconds += time.monotonic() - started
            text_bytes += batch.text_bytes()
            documents += len(batch.rows)
            tokens += len(encoded.tokens) + boundaries * len(batch.rows)
    scale = max(text_bytes, 1)
    return _Sample(tokens / scale, documents / scale, seconds / scale)


def _sample_documents(request: Request, units: pa.Table) -> Iterator[Documents]:
    chosen = np.unique(np.linspace(0, len(units) - 1, min(SAMPLED_UNITS, len(units))).astype(int))
    for task in planning.tasks(units, request.discovery.table, chosen):
        for _, documents in unit_documents(task, request.job):
            present = documents.without_nulls()
            yield present.slice_bytes(SAMPLE_BYTES)
            break
