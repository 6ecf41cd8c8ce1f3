"""Reads and encodes a little text of some units, for estimates.

`Measure` runs in workers, because a damaged source may kill the process that reads it. All workers measure at the same
time, so that the time is that of workers that share the machine.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.executors.fan_out import PATIENT, ignore, run_all
from tokenmill.executors.messages import work_failed
from tokenmill.executors.outcomes import Died, Executor, Failed, RetryPolicy
from tokenmill.pipeline.planning.estimate import CorpusEstimate, Sample, choose_units, make_estimate
from tokenmill.pipeline.planning.request import PrepareRequest
from tokenmill.pipeline.unit.documents import WorkerLimits, loaded_tokenizer, unit_documents
from tokenmill.pipeline.unit.messages import span
from tokenmill.pipeline.unit.plan import DEFAULT_SECONDS, Position, UnitTask, tasks
from tokenmill.sources import ROW_KINDS, compression_ratio
from tokenmill.sources.documents import Documents, SourceFile
from tokenmill.storage import Folder, folder_at
from tokenmill.store import layout
from tokenmill.store.job import Job
from tokenmill.tokenization.resolve import Vocabulary

# How much text of a unit is read, and how much of it is encoded: pieces at equal distances, because documents differ
# much in language and length. A piece is so long that the words that are cut at its ends hardly count.
READ_BYTES = 1 << 20
ENCODED_BYTES = 1 << 18
PIECE_BYTES = 1 << 11

# How many units are sampled: at least, and for each worker.
SAMPLED_UNITS = 32
SAMPLED_PER_WORKER = 2

# Where units that cannot be sampled are skipped.
_ONE_ATTEMPT = RetryPolicy(max_crashes=1)


@dataclass(frozen=True, slots=True)
class Measure:
    """The function that samples a unit, with the vocabulary in `directory`. Skips bad rows.

    A worker that takes longer than `encode_seconds` is stopped.
    """

    directory: str
    job: Job
    engine: str
    limits: WorkerLimits
    encode_seconds: float = DEFAULT_SECONDS

    def __call__(self, task: UnitTask) -> Sample:
        """Read the first documents of a unit, and encode pieces of their text."""
        tokenizer = loaded_tokenizer(self.directory, self.job, self.engine)
        started = time.monotonic()
        text, fraction = self._read(task)
        read_seconds = time.monotonic() - started
        pieces = text if self.job.has_ids else _pieces(text)
        lengths, piece_bytes = _lengths(text), _lengths(pieces)
        Position("encode").mark(self.encode_seconds)
        started = time.monotonic()
        encoded = tokenizer.encode(pieces)
        cold_seconds = time.monotonic() - started
        tokenizer.encode(pieces)
        seconds = time.monotonic() - started - cold_seconds
        scale = max(1, lengths.sum()) / max(1, piece_bytes.sum())
        boundaries = (self.job.begin is not None) + (self.job.end is not None) + round(3 * (self.job.fim_rate or 0))
        mean = len(encoded.tokens) / max(1, piece_bytes.sum())
        tokens = (np.diff(encoded.offsets) if pieces is text else lengths * mean) + boundaries
        is_stored = self.job.within_limits(tokens)
        return Sample(
            planned_bytes=fraction * task.text_bytes,
            encoded=1 / scale,
            text_bytes=float(lengths.sum()),
            documents=float(is_stored.sum()),
            tokens=float(tokens[is_stored].sum()),
            seconds=read_seconds + seconds * scale,
            cold_seconds=read_seconds + cold_seconds * scale,
        )

    def _read(self, task: UnitTask) -> tuple[pa.LargeStringArray, float]:
        """The first texts of a unit, and the fraction of the unit that they are from."""
        limits = msgspec.structs.replace(self.limits, on_bad="quarantine")
        options = msgspec.structs.replace(limits.read_options(self.job), batch_bytes=READ_BYTES)
        batches: list[tuple[SourceFile, Documents]] = []
        texts = [pa.array([], pa.large_binary() if self.job.has_ids else pa.large_string())]
        fraction = 1.0
        for file, documents in unit_documents(self.directory, task, self.job, limits, options=options):
            if sum(_lengths(text).sum() for text in texts) >= READ_BYTES:
                fraction = _fraction(task, batches, file, documents)
                break
            batches.append((file, documents))
            texts.append(documents.without_nulls().whole_text())
        return pa.concat_arrays(texts), fraction


def _fraction(
    task: UnitTask, batches: list[tuple[SourceFile, Documents]], file: SourceFile, following: Documents
) -> float:
    """The fraction of a unit that some batches are, by its rows or by its bytes. The next batch is `following`."""
    if task.rows is not None:
        return min(1.0, sum(len(_rows(documents)) for _, documents in batches) / max(task.rows, 1))
    of_file = [documents for each, documents in batches if each.index == file.index]
    if file.kind in ROW_KINDS:  # the place in the file is not known, and the text is at most what was read
        content = sum(documents.text_bytes() for documents in of_file)
    else:
        starts = [_rows(documents).min() for documents in (*of_file[:1], following) if len(_rows(documents))]
        content = int(starts[-1] - starts[0]) if of_file and starts else 0
    total = sum(each.size for each in task.files)
    if task.file_slice is not None:
        total = task.file_slice.stop - task.file_slice.start
    read = sum(each.size for each in task.files if each.index < file.index) + content / compression_ratio(file)
    return min(1.0, read / max(total, 1))


def _rows(documents: Documents) -> npt.NDArray[np.uint64]:
    """The rows that were read, of documents or not."""
    bad = np.array([bad.row for bad in documents.bad], np.uint64)
    return np.concatenate([documents.rows, *documents.skipped.values(), bad])


def _pieces(text: pa.LargeStringArray) -> pa.LargeStringArray:
    """Pieces of the text of all documents, cut between characters; the documents themselves if they are short."""
    total = int(_lengths(text).sum())
    if total <= ENCODED_BYTES:
        return text
    _, offsets, data = text.buffers()
    first = int(np.frombuffer(offsets, np.int64)[text.offset])
    values = np.append(np.frombuffer(data, np.uint8)[: first + total], np.uint8(0))
    edges = np.arange(first, first + total, PIECE_BYTES)
    for _ in range(3):  # the bytes of a character after its first one
        edges = edges + (values[edges] & 0xC0 == 0x80)
    edges = np.append(edges, first + total)
    pieces = pa.LargeStringArray.from_buffers(len(edges) - 1, pa.py_buffer(edges), data)
    return pieces.take(pa.array(np.arange(0, len(pieces), -(-total // ENCODED_BYTES))))


def _lengths(text: pa.LargeStringArray) -> npt.NDArray[np.int64]:
    return np.asarray(pc.binary_length(text))


def estimate_units(  # noqa: PLR0913 - the worker function, and the units to spread it over
    executor: Executor,
    measure: Measure,
    plan: pa.Table,
    sources: pa.Table,
    units: npt.NDArray[np.int64],
    *,
    workers: int,
    skip_failures: bool = False,
) -> CorpusEstimate | None:
    """What some units will come to, from samples of them. Raises for a sample that fails, or skips it."""
    planned = plan["text_bytes"].to_numpy()[units]
    chosen, weights = choose_units(planned, max(SAMPLED_UNITS, SAMPLED_PER_WORKER * workers))
    weight_of = dict(zip(units[chosen].tolist(), weights.tolist(), strict=True))
    results = run_all(
        executor,
        measure,
        tasks(plan, sources, units[chosen]),
        policy=_ONE_ATTEMPT if skip_failures else PATIENT,
        on_failure=ignore if skip_failures else raise_failure,
    )
    # Their order decides the last digits of a sum.
    samples = dict(sorted((done.item.unit, done.value) for done in results))
    return make_estimate(list(samples.values()), [weight_of[unit] for unit in samples], int(planned.sum()))


def raise_failure(failure: Failed[Any] | Died[Any]) -> NoReturn:
    """End a sample at its first failed unit."""
    if isinstance(failure, Failed) and failure.explained:
        raise failure.error()
    raise work_failed([failure], lambda item: span(item) if isinstance(item, UnitTask) else "a measurement")


def write_vocabulary(folder: Folder, vocabulary: Vocabulary) -> None:
    """Publish a vocabulary where workers look for it."""
    folder.create(layout.TOKENIZER)
    with folder.publish(f"{layout.TOKENIZER}/{vocabulary.spec.file}") as file:
        file.write(vocabulary.content)


def estimate_request(
    request: PrepareRequest, units: pa.Table, limits: WorkerLimits, executor: Executor, workers: int
) -> CorpusEstimate | None:
    """What all units of a request will come to. Bad rows are skipped."""
    with tempfile.TemporaryDirectory() as directory:
        for vocabulary in request.vocabularies:
            write_vocabulary(folder_at(directory), vocabulary)
        measure = Measure(directory, request.job, request.choice.engine, limits)
        return estimate_units(executor, measure, units, request.discovery.table, np.arange(len(units)), workers=workers)
