"""The result of `bench`: the cells, the forecast for the corpus, and notes on both."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tokenmill.humanize import Readable, count, size
from tokenmill.pipeline.bench.forecast import (
    Cell,
    Corpus,
    Forecast,
    average_busy_workers,
    describe_limit,
    forecast,
    make_corpus,
)
from tokenmill.pipeline.bench.scratch import is_in_memory
from tokenmill.system import machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenmill.pipeline.bench.cells import CellRunner
    from tokenmill.pipeline.bench.readings import SampleTotals
    from tokenmill.pipeline.planning.request import PrepareRequest
    from tokenmill.pipeline.planning.resources import Resources

# Rates measured on less text say little about a large corpus.
SMALL_BYTES = 8 << 20
MADE_UP_CORPUS_BYTES = 10**12
# With more units than this, the last units do not matter for the average of busy workers.
MANY_UNITS = 100_000
# If a smaller fraction of the workers has work on average, a note says so.
MIN_BUSY_FRACTION = 0.9
# If the sample was used more often, a note says so.
MAX_TIMES = 1.5


class BenchResult(Readable, msgspec.Struct, frozen=True):
    """What was measured, and the forecast for the corpus.

    `start_seconds` is the time before the first unit starts, once a run. No cell includes it. `default` is the forecast
    for the options that `prepare` would choose, if that cell was measured.
    """

    tokenizer: str
    cores: int
    is_made_up: bool
    sample_bytes: int
    sample_times: float
    written_to: str
    start_seconds: float
    cells: list[Cell]
    noise: float
    corpus: Corpus
    best: Forecast
    default: Forecast | None
    price_per_core_hour: float | None
    limit: str
    seconds: float
    notices: list[str]


@dataclass(frozen=True, slots=True)
class MeasuredCells:
    """Everything that was measured."""

    request: PrepareRequest
    cells: list[Cell]
    runner: CellRunner
    totals: SampleTotals
    resources: Resources
    is_made_up: bool
    library_seconds: float

    def start_seconds(self, cell: Cell) -> float:
        """The time to load the libraries and the engine of a cell."""
        return self.library_seconds + self.runner.start_seconds[cell.engine]

    @property
    def scale(self) -> float:
        """The size of the corpus divided by that of the sample, in bytes of files."""
        return self.request.source_bytes / self.runner.draw.sample.source_bytes

    def units(self) -> int:
        """The approximate number of units of the corpus."""
        return round(len(self.totals.unit_bytes) * self.scale)

    def busy_workers(self, workers: int) -> float:
        """The average number of workers that the units of the corpus keep busy."""
        if self.is_made_up or self.units() > MANY_UNITS:
            return float(workers)
        return average_busy_workers(np.tile(self.totals.unit_bytes, max(round(self.scale), 1)).tolist(), workers)


def make_result(measured: MeasuredCells, price: float | None, seconds: float) -> BenchResult:
    """The result with all forecasts. `seconds` is how long everything took."""
    cells, cores, runner = measured.cells, machine.cores(), measured.runner
    corpus = _made_up_corpus(measured) if measured.is_made_up else _corpus(measured)

    def predict(cell: Cell) -> Forecast:
        start, busy = measured.start_seconds(cell), measured.busy_workers(cell.workers)
        return forecast(cell, corpus, start_seconds=start, cores=cores, price=price, busy=busy)

    best = min(cells, key=lambda cell: predict(cell).seconds)
    default = next((cell for cell in cells if cell.is_default), None)
    chosen = default or best
    alone = next((cell for cell in cells if cell.engine == chosen.engine and cell.workers == 1), None)
    return BenchResult(
        tokenizer=measured.request.job.tokenizer.name,
        cores=cores,
        is_made_up=measured.is_made_up,
        sample_bytes=runner.readings.text_bytes,
        sample_times=round(runner.times, 1),
        written_to=os.path.dirname(runner.folder.root),
        start_seconds=round(measured.start_seconds(chosen), 2),
        cells=cells,
        noise=round(max(cell.noise for cell in cells), 3),
        corpus=corpus,
        best=predict(best),
        default=None if default is None else predict(default),
        price_per_core_hour=price,
        limit=describe_limit(chosen, alone, cores),
        seconds=round(seconds, 1),
        notices=list(_notices(measured, predict(chosen))),
    )


def _corpus(measured: MeasuredCells) -> Corpus:
    """All of the sources: the sample's totals, scaled by the size of the files."""
    request, sample, totals, scale = measured.request, measured.runner.draw.sample, measured.totals, measured.scale
    rows = sample.rows if sample.source_bytes == request.source_bytes else None
    return make_corpus(
        sources=len(request.discovery.table),
        source_bytes=request.source_bytes,
        text_bytes=totals.text_bytes * scale,
        documents=rows if rows is not None else totals.documents * scale,
        tokens=totals.tokens * scale,
        token_bytes=np.dtype(request.job.tokenizer.dtype).itemsize,
    )


def _made_up_corpus(measured: MeasuredCells) -> Corpus:
    """A terabyte of such text, so that the forecast has hours to show."""
    small = _corpus(measured)
    scale = MADE_UP_CORPUS_BYTES / small.text_bytes
    return make_corpus(
        sources=0,
        source_bytes=round(small.source_bytes * scale),
        text_bytes=MADE_UP_CORPUS_BYTES,
        documents=small.documents * scale,
        tokens=small.tokens * scale,
        token_bytes=small.token_bytes,
    )


def _notices(measured: MeasuredCells, predicted: Forecast) -> Iterator[str]:
    """Notes on the units, the sample, the engine and the disk."""
    if predicted.busy_workers < MIN_BUSY_FRACTION * predicted.workers:
        units = f"{count(measured.units(), 'unit')} for {count(predicted.workers, 'worker')}"
        busy = f"{predicted.busy_workers:.1f} of them have work on average"
        yield f"{units}: {busy}, since a compressed file or a row group is never cut"
    request, times, text_bytes = measured.request, measured.runner.times, measured.totals.text_bytes
    yield from request.named.notes
    if text_bytes < SMALL_BYTES:
        yield f"the sample has {size(text_bytes)} of text, too little for reliable figures"
    elif times > MAX_TIMES and not measured.is_made_up:
        yield f"the sample was used {times:.0f} times over, and known words are fast: a long run may be slower"
    if measured.totals.is_guessed:
        yield "how much text there is, is a guess from the size of compressed files: tokens and time may be far off"
    if request.choice.reason:
        yield request.choice.reason
    if measured.resources.notice:
        yield measured.resources.notice
    yield from request.discovery.ignored.notes()
    parent = os.path.dirname(measured.runner.folder.root)
    if is_in_memory(parent):
        yield f"{parent} is in memory, which is no disk: measure yours with --out"
    yield from measured.runner.notices
