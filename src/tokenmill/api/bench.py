"""`tokenmill.bench`: what this machine does with a sample, and what the whole corpus will take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenmill.executors import progress
from tokenmill.pipeline.bench.options import BenchOptions, parse_worker_counts
from tokenmill.pipeline.bench.result import BenchResult
from tokenmill.pipeline.bench.run import run_bench
from tokenmill.pipeline.sizes import parse_size

if TYPE_CHECKING:
    from collections.abc import Sequence


def bench(  # noqa: PLR0913 - the options of the command, by their names
    sources: str | Sequence[str] = (),
    *,
    tokenizer: str = "gpt2",
    version: str | None = None,
    column: str | None = None,
    separator: str | None = None,
    workers: str | int | Sequence[int] | None = None,
    sample_bytes: str | int | None = None,
    seconds: float = 30.0,
    price_per_core_hour: float | None = None,
    out: str | None = None,
    reporter: progress.Reporter | None = None,
) -> BenchResult:
    """Measure each engine with each number of workers on a sample, and forecast the time and cost of all sources.

    Without sources, the text is made up. Parts are written below `out`, or to the directory for temporary files, and
    removed at the end.
    """
    options = BenchOptions(
        sources,
        tokenizer,
        version,
        column,
        separator,
        parse_worker_counts(workers),
        None if sample_bytes is None else parse_size(sample_bytes),
        seconds,
        price_per_core_hour,
        out,
    )
    return run_bench(options, reporter if reporter is not None else progress.for_python())
