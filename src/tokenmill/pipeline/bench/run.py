"""Runs `bench`: estimates a sample of the corpus as `plan` does, and measures each engine with each number of workers.

A measurement does what a run does, with the same workers, reading and encoding, and real parts with checksums on a real
disk. The parts are removed at the end.
"""

from __future__ import annotations

import itertools
import os
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from tokenmill.errors import SourceError, UsageError
from tokenmill.executors.local import LocalExecutor
from tokenmill.executors.progress import Reporter
from tokenmill.humanize import count, duration, size
from tokenmill.options import JobOptions
from tokenmill.pipeline import worker_modules
from tokenmill.pipeline.bench.library import write_library
from tokenmill.pipeline.bench.measure import UNITS, MeasureSpeed, Speed, measure_all
from tokenmill.pipeline.bench.result import BenchResult, Corpus, make_cell, with_forecast
from tokenmill.pipeline.planning.estimate import CorpusEstimate, Footprint
from tokenmill.pipeline.planning.freeze import plan_step
from tokenmill.pipeline.planning.request import (
    BadDocumentPolicy,
    PrepareRequest,
    find_sources,
    make_request,
    refuse_without_effect,
)
from tokenmill.pipeline.planning.resources import Resources, plan_resources
from tokenmill.pipeline.planning.sample import Measure, estimate_units, write_vocabulary
from tokenmill.pipeline.planning.split_sources import plan_units
from tokenmill.pipeline.unit.plan import DEFAULT_UNIT_BYTES, SMALLEST_UNIT_BYTES, tasks
from tokenmill.sources.named_datasets import resolve_sources
from tokenmill.storage import Folder, absolute, folder_at, scheme
from tokenmill.store.layout import PARTS
from tokenmill.system import machine
from tokenmill.tokenization.objects import TokenizerObject
from tokenmill.tokenization.resolve import resolve
from tokenmill.tokenization.tokenizer import REFERENCES

SCRATCH_PREFIX = ".tokenmill-bench-"
MAX_CELL_SECONDS = 4.0
MIN_CELL_SECONDS = 0.4
MAX_ROUNDS = 3
# Rates measured on less text say little about a large corpus, and the sample is not worth more time than this.
SMALL_BYTES = 8 << 20
SMALL_SECONDS = 4.0
# If the sample was used more often, a note says so.
MAX_TIMES = 1.5
# The number of offsets in a large corpus at which files are taken.
OFFSETS = 32
MAX_FILES_PER_OFFSET = 128


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure. Without `sources`, the text is made up; without `worker_counts`, defaults are used."""

    sources: str | Sequence[str]
    tokenizer: str | TokenizerObject
    version: str | None
    column: str | None
    separator: str | None
    worker_counts: list[int]
    seconds: float
    out: str | None


def parse_worker_counts(workers: str | int | Sequence[int] | None) -> list[int]:
    """The distinct numbers of workers, ascending. Empty for None."""
    if workers is None:
        return []
    parts = workers.split(",") if isinstance(workers, str) else [workers] if isinstance(workers, int) else workers
    try:
        counts = sorted({int(part) for part in parts})
    except ValueError:
        counts = []
    if not counts or counts[0] < 1:
        raise UsageError(f"--workers {workers} is not a list of worker counts", "Give one, or several: 1,2,4.")
    return counts


def default_worker_counts(default: int) -> list[int]:
    """1, 2, 4, ... up to the default number of workers of a run, and that number."""
    doubled = [1 << power for power in range(default.bit_length())]
    return sorted({*doubled, default})


def schedule(seconds: float, cells: int) -> tuple[int, float]:
    """The rounds over all cells, and the seconds for each: two rounds if there is time, three if there is plenty."""
    minimum = {MAX_ROUNDS: MAX_CELL_SECONDS / 2, 2: MIN_CELL_SECONDS}
    rounds = next((rounds for rounds, least in minimum.items() if seconds / rounds / cells >= least), 1)
    return rounds, min(seconds / rounds / cells, MAX_CELL_SECONDS)


def spread_files(sources: pa.Table, min_bytes: int) -> pa.Table:
    """All sources of a small corpus. Of a large one, files at evenly spread offsets.

    At each offset, as many files are taken as it needs to have `min_bytes`.
    """
    ends = np.cumsum(sources["size"].to_numpy())
    if len(sources) <= OFFSETS:
        return sources
    chosen: set[int] = set()
    for offset in np.linspace(0, float(ends[-1]), OFFSETS, endpoint=False):
        first = int(np.searchsorted(ends, offset, side="right"))
        stop = int(np.searchsorted(ends, offset + min_bytes)) + 1
        chosen.update(range(first, min(stop, first + MAX_FILES_PER_OFFSET, len(sources))))
    return sources.take(pa.array(sorted(chosen)))


def run_bench(options: BenchOptions, reporter: Reporter) -> BenchResult:
    """Measure each engine with each number of workers on a sample, and forecast the corpus."""
    with (
        scratch(options.out) as folder,  # entered first, so that no worker writes any more when it is removed
        LocalExecutor((*worker_modules("auto"), "tokenmill.pipeline.bench.measure")) as pool,
        reporter as report,
        _text_sources(options.sources) as sources,
    ):
        request = _make_request(options, sources, report)
        chosen = request.choice.engine, _default_workers(request if options.sources else None)
        counts = options.worker_counts or default_worker_counts(chosen[1])
        resources = plan_resources(max(counts), None, max(counts))
        pool.start(resources.workers, resources.worker_bytes, resources.total_worker_bytes)
        bench = _Bench(request, folder, pool, resources, report)
        bench.take_sample()
        counts = [number for number in counts if number <= resources.workers] or [resources.workers]
        engines = list(dict.fromkeys([request.choice.engine, REFERENCES[request.job.tokenizer.kind].name]))
        speeds = bench.measure(list(itertools.product(engines, counts)), options.seconds)
    corpus, cores = bench.corpus() if options.sources else None, machine.cores()
    cells = [make_cell(*cell, taken, is_default=cell == chosen, cores=cores) for cell, taken in speeds.items()]
    cells = cells if corpus is None else [with_forecast(cell, corpus, cores) for cell in cells]
    return BenchResult(
        tokenizer=request.job.tokenizer.name,
        cores=cores,
        written_to=os.path.dirname(folder.root),
        cells=cells,
        best=max(cells, key=lambda cell: cell.bytes_per_second),
        default=next((cell for cell in cells if cell.is_default), None),
        corpus=corpus,
        notices=[*bench.notices(speeds), *request.discovery.ignored.notes()],
    )


@dataclass
class _Bench:
    """A sample of a corpus, and the workers and the folder to measure on it."""

    request: PrepareRequest
    folder: Folder
    pool: LocalExecutor
    resources: Resources
    report: Reporter
    sources: pa.Table = field(init=False)
    units: pa.Table = field(init=False)
    expected: CorpusEstimate = field(init=False)
    deaths: list[str] = field(default_factory=list)

    def take_sample(self) -> None:
        """Plan and estimate files from the whole corpus. Only these are opened, so a corpus may have any size."""
        request = self.request
        self.sources = spread_files(request.discovery.table, request.job.unit_bytes)
        step = plan_step(self.sources, "of the sample planned", self.report.pending)
        unit_bytes = request.job.unit_bytes
        self.units = plan_units(self.sources, request.options, unit_bytes, self.pool, on_progress=step)
        write_vocabulary(self.folder, request.vocabulary)
        limits = self.resources.limits(BadDocumentPolicy.parse())
        measure = Measure(self.folder.root, request.job, request.choice.engine, limits)
        units, workers = np.arange(len(self.units)), self.resources.workers
        expected = estimate_units(self.pool, measure, self.units, self.sources, units, workers=workers)
        if expected is None or not expected.text_bytes.high:
            path = f"file         {self.sources['path'][0].as_py()}"
            raise SourceError("there is no text in the sources", path, "Every row is empty: is it the right --column?")
        self.expected = expected

    def measure(self, cells: list[tuple[str, int]], seconds: float) -> dict[tuple[str, int], list[Speed]]:
        """The speeds of all cells. Rounds spread a temporary disturbance of the machine over all cells."""
        if self.expected.text_bytes.high < SMALL_BYTES:
            seconds = min(seconds, SMALL_SECONDS)
        rounds, cell_seconds = schedule(seconds, len(cells))
        speeds: dict[tuple[str, int], list[Speed]] = {cell: [] for cell in cells}
        limits = self.resources.limits(BadDocumentPolicy.parse())
        for number, (engine, workers) in enumerate(cells * rounds):
            left = duration((rounds * len(cells) - number) * cell_seconds)
            progress = f"round {number // len(cells) + 1} of {rounds}, about {left} left"
            self.report.pending(f"measuring    {engine} with {count(workers, 'worker')}; {progress}")
            measure = MeasureSpeed(self.folder.root, self.request.job, engine, limits, cell_seconds)
            draw = np.random.default_rng(number)
            items = [draw.permutation(len(self.units))[:UNITS] for _ in range(workers)]
            units = [tuple(tasks(self.units, self.sources, item.tolist())) for item in items]
            speeds[engine, workers].append(measure_all(self.pool, measure, units, self.deaths.append))
        return speeds

    def corpus(self) -> Corpus:
        """All of the sources, scaled by the size of the files from those of the sample."""
        source_bytes = self.request.source_bytes
        factor = source_bytes / int(self.sources["size"].to_numpy().sum())
        expected = self.expected.scaled(factor)
        return Corpus(
            sources=len(self.request.discovery.table),
            source_bytes=source_bytes,
            units=round(len(self.units) * factor),
            text_bytes=expected.text_bytes,
            documents=expected.documents,
            tokens=expected.tokens,
            bytes_per_token=expected.bytes_per_token,
            disk_bytes=expected.disk_bytes([Footprint.of_store(self.request.job.tokenizer.dtype)]),
        )

    def notices(self, speeds: dict[tuple[str, int], list[Speed]]) -> Iterator[str]:
        """Notes on the sample, the engine and the workers."""
        each = [speed for measured in speeds.values() for speed in measured]
        text_bytes = self.expected.text_bytes.high
        times = sum(speed.text_bytes for speed in each) / text_bytes
        yield from self.request.named.notes
        if text_bytes < SMALL_BYTES:
            yield f"the sample has {size(text_bytes)} of text, too little for reliable figures"
        elif times > MAX_TIMES:
            yield f"the sample was used {times:.0f} times over, and known words are fast: a long run may be slower"
        if len(self.units) < self.resources.workers:
            units = f"{count(len(self.units), 'unit')} for {count(self.resources.workers, 'worker')}"
            yield f"{units}: a compressed file or a row group is never cut"
        if self.request.choice.reason:
            yield self.request.choice.reason
        if self.resources.notice:
            yield self.resources.notice
        yield from dict.fromkeys([*self.deaths, *(notice for speed in each for notice in speed.notices)])


@contextmanager
def scratch(out: str | None) -> Iterator[Folder]:
    """A new folder in `out`, in its nearest existing parent, or in the directory for temporary files.

    It is removed at the end in any case.
    """
    parent = folder_at(_nearest_existing(out or tempfile.gettempdir()))
    name = f"{SCRATCH_PREFIX}{secrets.token_hex(6)}"
    try:
        folder = folder_at(f"{parent.root}/{name}")
        folder.create(PARTS)
        yield folder
    finally:
        parent.remove(name)


def _nearest_existing(path: str) -> str:
    if scheme(path):
        return path
    path = absolute(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


@contextmanager
def _text_sources(sources: str | Sequence[str]) -> Iterator[str | Sequence[str]]:
    """The sources. Without any, the standard library of Python."""
    if sources:
        yield sources
        return
    with tempfile.TemporaryDirectory() as directory:
        yield write_library(directory)


def _make_request(options: BenchOptions, sources: str | Sequence[str], report: Reporter) -> PrepareRequest:
    """The request of a run. A tokenizer without an end token gets token 0: all tokens take the same time."""
    named, vocabulary = resolve_sources(sources, options.version, options.column), resolve(options.tokenizer)
    job = JobOptions(
        tokenizer=options.tokenizer,
        column=named.column,
        separator=options.separator,
        eot=None if vocabulary.spec.end_of_text is not None else 0,
        unit_bytes=None if options.sources else DEFAULT_UNIT_BYTES,
    )
    discovery = find_sources(named.sources, report.pending)
    refuse_without_effect(discovery, column=options.column, separator=options.separator)
    return make_request(job, discovery, vocabulary, named)


def _default_workers(request: PrepareRequest | None) -> int:
    """The default number of workers of a run, for these sources or for a corpus with enough units."""
    units = machine.cores() if request is None else request.source_bytes // SMALLEST_UNIT_BYTES + 1
    return plan_resources(None, None, units).workers
