"""`bench`: what this machine makes of a sample, and what the whole corpus will take.

It does what a run does, with the same workers, the same reading and encoding, and real parts with checksums on a real
disk; only the parts are removed again.
"""

from __future__ import annotations

import math
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokenmill.errors import UsageError
from tokenmill.executors import progress
from tokenmill.executors.local import LocalExecutor
from tokenmill.humanize import parse_size
from tokenmill.pipeline import plan, worker_modules
from tokenmill.pipeline.bench.cells import Cells
from tokenmill.pipeline.bench.made_up_text import write_made_up
from tokenmill.pipeline.bench.measurement import cell_of
from tokenmill.pipeline.bench.result import SMALL_BYTES, BenchResult, MeasuredCells, benchmark
from tokenmill.pipeline.bench.sample import BenchSample, Draw, take_sample
from tokenmill.pipeline.bench.scratch import PREFIX, scratch
from tokenmill.pipeline.bench.timing import ready
from tokenmill.pipeline.request import BadDocumentPolicy, PrepareOptions, PrepareRequest, find_sources, make_request
from tokenmill.pipeline.resources import plan_resources
from tokenmill.pipeline.retry_policy import PREFETCH_UNITS
from tokenmill.pipeline.sample import write_vocabulary
from tokenmill.sources.named_datasets import resolve_sources
from tokenmill.storage import scheme
from tokenmill.system import machine
from tokenmill.tokenizers.resolve import resolve
from tokenmill.tokenizers.tokenizer import REFERENCES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokenmill.pipeline.resources import Resources
    from tokenmill.storage import Folder

SECONDS = 30.0
SMALL_SECONDS = 4.0


def bench(  # noqa: PLR0913 - the options of the command, by their names
    sources: str | Sequence[str] = (),
    *,
    tokenizer: str = "gpt2",
    version: str | None = None,
    column: str | None = None,
    separator: str | None = None,
    workers: str | int | Sequence[int] | None = None,
    sample_bytes: str | int | None = None,
    seconds: float = SECONDS,
    price_per_core_hour: float | None = None,
    out: str | None = None,
    reporter: progress.Reporter | None = None,
) -> BenchResult:
    """Measure each engine with each number of workers on a sample, and say what all of the sources would take.

    Without sources, the text is made up. Parts are written below `out`, or where temporary files go, and removed.
    """
    started = time.monotonic()
    _check(seconds, price_per_core_hour)
    wanted = _wanted_counts(workers)
    most_bytes = None if sample_bytes is None else parse_size(sample_bytes)
    with (
        scratch(out) as folder,  # the first in, the last out: when it is removed, no worker writes any more
        _early_workers() as (pool, library_seconds),
        reporter if reporter is not None else progress.for_python() as report,
        _text(sources, folder, report.pending) as text,
    ):
        request = _request(text, tokenizer, version, column, separator, report, is_made_up=not sources)
        default = (request.choice.engine, _default_workers(request if sources else None))
        counts = wanted or _usual_counts(default[1])
        means = plan_resources(max(counts), None, max(counts))
        pool.start(means.workers, means.worker_bytes, means.total_worker_bytes)
        sample = take_sample(request, pool, report.pending)
        by = _measurer(folder, request, means, pool, Draw(sample, most_bytes), report)
        turns = by.measure(_engines(request), _fitting(counts, means.workers), _enough(sample, seconds))
        found = by.readings.found(sample, pool)
    cells = [cell_of(*cell, each, is_default=cell == default) for cell, each in turns.items()]
    measured = MeasuredCells(request, cells, by, found, means, not sources, library_seconds)
    return benchmark(measured, price_per_core_hour, time.monotonic() - started)


def _check(seconds: float, price: float | None) -> None:
    if not 0 < seconds < math.inf:
        raise UsageError(f"--seconds {seconds:g} is not a time", "Give the seconds that measuring may take: 30.")
    if price is not None and not 0 <= price < math.inf:
        raise UsageError(
            f"--price-per-core-hour {price:g} is not a price", "Give what an hour of one core costs: 0.04."
        )


def _request(  # noqa: PLR0913, PLR0917 - the words of the call
    sources: str | Sequence[str],
    tokenizer: str,
    version: str | None,
    column: str | None,
    separator: str | None,
    report: progress.Reporter,
    *,
    is_made_up: bool,
) -> PrepareRequest:
    """What a run would be asked for. Any token may end a document here: all of them take the same time."""
    named, vocabulary = resolve_sources(sources, version, column), resolve(tokenizer)
    words = PrepareOptions(
        named.sources,
        tokenizer,
        named.column,
        separator,
        eot=None if vocabulary.spec.end_of_text is not None else 0,
        unit_bytes=plan.DEFAULT_UNIT_BYTES if is_made_up else None,
    )
    return make_request(words, find_sources(words, report.pending), vocabulary, named)


def _wanted_counts(workers: str | int | Sequence[int] | None) -> list[int]:
    """The numbers of workers that were asked for, each once; none if nothing was said."""
    if workers is None:
        return []
    words = workers.split(",") if isinstance(workers, str) else [workers] if isinstance(workers, int) else workers
    try:
        counts = sorted({int(word) for word in words})
    except ValueError:
        counts = []
    if not counts or counts[0] < 1:
        raise UsageError(f"--workers {workers} are no numbers of workers", "Give one, or several: 1,2,4.")
    return counts


def _usual_counts(default: int) -> list[int]:
    """1, 2, 4, ... up to what a run takes by itself, and that."""
    doubled = [1 << power for power in range(default.bit_length())]
    return sorted({*doubled, default})


def _fitting(counts: list[int], most: int) -> list[int]:
    """Those for which there is memory."""
    return [number for number in counts if number <= most] or [most]


def _default_workers(request: PrepareRequest | None) -> int:
    """How many workers a run takes if nothing is said: of these sources, or of more than enough."""
    units = machine.cores() if request is None else request.source_bytes // plan.SMALLEST_UNIT_BYTES + 1
    return plan_resources(None, None, units).workers


def _engines(request: PrepareRequest) -> list[str]:
    """The fast engine, if it can be used, and the reference."""
    return list(dict.fromkeys([request.choice.engine, REFERENCES[request.job.tokenizer.kind].name]))


@contextmanager
def _early_workers() -> Iterator[tuple[LocalExecutor, float]]:
    """Workers that have loaded their libraries, and how long that took."""
    started = time.monotonic()
    with LocalExecutor(
        (*worker_modules("auto"), "tokenmill.pipeline.bench.timing", "tokenmill.pipeline.bench.compression")
    ) as pool:
        pool.start(1)
        list(pool.run(ready, [0]))
        yield pool, time.monotonic() - started


@contextmanager
def _text(
    sources: str | Sequence[str], folder: Folder, pending: Callable[[str], None]
) -> Iterator[str | Sequence[str]]:
    """The sources, or some made up for as long as they are needed: beside the parts, unless these are far away."""
    if sources:
        yield sources
        return
    pending("making up    text")
    above = None if folder.is_remote else folder.root
    with tempfile.TemporaryDirectory(prefix=PREFIX, dir=above) as directory:
        yield write_made_up(directory)


def _measurer(  # noqa: PLR0913, PLR0917 - all that a run has
    folder: Folder,
    request: PrepareRequest,
    means: Resources,
    pool: LocalExecutor,
    draw: Draw,
    report: progress.Reporter,
) -> Cells:
    write_vocabulary(folder, request.vocabulary)
    is_far = folder.is_remote or any(scheme(path) for path in draw.sample.sources["path"].to_pylist())
    ahead = PREFETCH_UNITS if is_far else 0
    return Cells(pool, folder, request.job, means.limits(BadDocumentPolicy()), draw, ahead, report)


def _enough(sample: BenchSample, seconds: float) -> float:
    """No more time than a small sample is worth."""
    return seconds if sample.planned_bytes >= SMALL_BYTES else min(seconds, SMALL_SECONDS)
