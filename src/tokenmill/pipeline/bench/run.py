"""Runs `bench`: starts workers, takes a sample, measures the cells, and makes the result.

A measurement does what a run does, with the same workers, reading and encoding, and real parts with checksums on a real
disk. The parts are removed at the end.
"""

from __future__ import annotations

import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokenmill.executors.local import LocalExecutor
from tokenmill.pipeline import worker_modules
from tokenmill.pipeline.bench.cells import CellRunner
from tokenmill.pipeline.bench.made_up_text import write_made_up
from tokenmill.pipeline.bench.measurement import summarize_cell
from tokenmill.pipeline.bench.options import BenchOptions, default_worker_counts
from tokenmill.pipeline.bench.result import SMALL_BYTES, BenchResult, MeasuredCells, make_result
from tokenmill.pipeline.bench.sample import UnitDraw, take_sample
from tokenmill.pipeline.bench.scratch import PREFIX, scratch
from tokenmill.pipeline.bench.timing import do_nothing
from tokenmill.pipeline.driving.retry_policy import PREFETCH_UNITS
from tokenmill.pipeline.planning.request import (
    BadDocumentPolicy,
    PrepareOptions,
    PrepareRequest,
    find_sources,
    make_request,
    refuse_without_effect,
)
from tokenmill.pipeline.planning.resources import plan_resources
from tokenmill.pipeline.planning.sample import write_vocabulary
from tokenmill.pipeline.unit.plan import DEFAULT_UNIT_BYTES, SMALLEST_UNIT_BYTES
from tokenmill.sources.named_datasets import resolve_sources
from tokenmill.storage import scheme
from tokenmill.system import machine
from tokenmill.tokenizers.resolve import resolve
from tokenmill.tokenizers.tokenizer import REFERENCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokenmill.executors.progress import Reporter
    from tokenmill.pipeline.planning.resources import Resources
    from tokenmill.storage import Folder

# A small sample is not worth more time than this.
SMALL_SECONDS = 4.0
WORKER_MODULES = ("tokenmill.pipeline.bench.timing", "tokenmill.pipeline.bench.compression")


def run_bench(options: BenchOptions, reporter: Reporter) -> BenchResult:
    """Measure each engine with each number of workers on a sample, and forecast the corpus."""
    started = time.monotonic()
    with (
        scratch(options.out) as folder,  # entered first, so that no worker writes any more when it is removed
        _loaded_workers() as (pool, library_seconds),
        reporter as report,
        _text_sources(options.sources, folder, report.pending) as sources,
    ):
        request = _make_request(options, sources, report)
        default = request.choice.engine, _default_workers(request if options.sources else None)
        counts = options.worker_counts or default_worker_counts(default[1])
        resources = plan_resources(max(counts), None, max(counts))
        pool.start(resources.workers, resources.worker_bytes, resources.total_worker_bytes)
        sample = take_sample(request, pool, report.pending)
        runner = _make_runner(folder, request, resources, pool, UnitDraw(sample, options.max_bytes), report)
        counts = [number for number in counts if number <= resources.workers] or [resources.workers]
        engines = list(dict.fromkeys([request.choice.engine, REFERENCES[request.job.tokenizer.kind].name]))
        is_small = sample.text_bytes < SMALL_BYTES
        measurements = runner.measure(
            engines, counts, min(options.seconds, SMALL_SECONDS) if is_small else options.seconds
        )
        totals = runner.readings.totals(sample, pool)
    cells = [summarize_cell(*cell, taken, is_default=cell == default) for cell, taken in measurements.items()]
    measured = MeasuredCells(request, cells, runner, totals, resources, not options.sources, library_seconds)
    return make_result(measured, options.price, time.monotonic() - started)


@contextmanager
def _loaded_workers() -> Iterator[tuple[LocalExecutor, float]]:
    """Workers that have imported their modules, and the seconds that took."""
    started = time.monotonic()
    with LocalExecutor((*worker_modules("auto"), *WORKER_MODULES)) as pool:
        pool.start(1)
        list(pool.run(do_nothing, [0]))
        yield pool, time.monotonic() - started


@contextmanager
def _text_sources(
    sources: str | Sequence[str], folder: Folder, pending: Callable[[str], None]
) -> Iterator[str | Sequence[str]]:
    """The sources. Without any, made-up files, in the folder of the parts unless that is remote."""
    if sources:
        yield sources
        return
    pending("generating   sample text")
    parent = None if folder.is_remote else folder.root
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=parent) as directory:
        yield write_made_up(directory)


def _make_request(options: BenchOptions, sources: str | Sequence[str], report: Reporter) -> PrepareRequest:
    """The request of a run. A tokenizer without an end token gets token 0: all tokens take the same time."""
    named, vocabulary = resolve_sources(sources, options.version, options.column), resolve(options.tokenizer)
    prepare = PrepareOptions(
        named.sources,
        options.tokenizer,
        named.column,
        options.separator,
        eot=None if vocabulary.spec.end_of_text is not None else 0,
        unit_bytes=None if options.sources else DEFAULT_UNIT_BYTES,
    )
    discovery = find_sources(prepare, report.pending)
    refuse_without_effect(discovery, column=options.column, separator=options.separator)
    return make_request(prepare, discovery, vocabulary, named)


def _default_workers(request: PrepareRequest | None) -> int:
    """The default number of workers of a run, for these sources or for a corpus with enough units."""
    units = machine.cores() if request is None else request.source_bytes // SMALLEST_UNIT_BYTES + 1
    return plan_resources(None, None, units).workers


def _make_runner(  # noqa: PLR0913, PLR0917 - all that a run has
    folder: Folder, request: PrepareRequest, resources: Resources, pool: LocalExecutor, draw: UnitDraw, report: Reporter
) -> CellRunner:
    write_vocabulary(folder, request.vocabulary)
    is_remote = folder.is_remote or any(scheme(path) for path in draw.sample.sources["path"].to_pylist())
    prefetch = PREFETCH_UNITS if is_remote else 0
    return CellRunner(pool, folder, request.job, resources.limits(BadDocumentPolicy()), draw, prefetch, report)
