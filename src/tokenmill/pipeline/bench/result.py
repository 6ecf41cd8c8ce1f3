"""What `bench` came to: the cells, and what follows from them for the corpus, with what should be known of both."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tokenmill.humanize import count, size
from tokenmill.pipeline.bench.forecast import Cell, Corpus, Forecast, corpus_of, forecast, kept_busy, limit
from tokenmill.pipeline.bench.scratch import is_in_memory
from tokenmill.system import machine

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenmill.pipeline.bench.cells import Cells
    from tokenmill.pipeline.bench.readings import SampleTotals
    from tokenmill.pipeline.request import PrepareRequest
    from tokenmill.pipeline.resources import Resources

SMALL_BYTES = 8 << 20
"""Less text than this tells little of how long more of it takes."""

MADE_UP_CORPUS_BYTES = 10**12
MANY_UNITS = 100_000
MAX_BUSY = 0.9
"""If fewer of the workers than this have work on average, it is worth a note."""

AGAIN = 1.5
"""How many times over a sample may be used before it is worth a note."""


class BenchResult(msgspec.Struct, frozen=True):
    """What was measured, and what follows from it for the corpus.

    `start_seconds` is what starting takes before the first unit is begun, once a run; it is in no cell. `default` is
    what `prepare` would do if nothing is said, where that was measured.
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
    """All that was found out: what was asked for, who measured it, with which means, and the cells."""

    request: PrepareRequest
    cells: list[Cell]
    by: Cells
    found: SampleTotals
    means: Resources
    is_made_up: bool
    library_seconds: float

    def start_seconds(self, cell: Cell) -> float:
        """What it takes to load the libraries and the engine of a cell."""
        return self.library_seconds + self.by.start_seconds[cell.engine]

    @property
    def times(self) -> float:
        """How many times the sample the corpus is, by the size of the files."""
        return self.request.source_bytes / self.by.draw.sample.source_bytes

    def units(self) -> int:
        """How many units the corpus has, about."""
        return round(len(self.found.unit_bytes) * self.times)

    def busy_workers(self, workers: int) -> float:
        """How many workers the units of the corpus keep busy; all of them, where there are more units than matter."""
        if self.is_made_up or self.units() > MANY_UNITS:
            return float(workers)
        return kept_busy(np.tile(self.found.unit_bytes, max(round(self.times), 1)).tolist(), workers)


def benchmark(measured: MeasuredCells, price: float | None, seconds: float) -> BenchResult:
    """What follows from it."""
    cells, cores = measured.cells, machine.cores()
    corpus = _made_up_corpus(measured) if measured.is_made_up else _corpus(measured)

    def told(cell: Cell) -> Forecast:
        start, busy = measured.start_seconds(cell), measured.busy_workers(cell.workers)
        return forecast(cell, corpus, start_seconds=start, cores=cores, price=price, busy=busy)

    best = min(cells, key=lambda cell: told(cell).seconds)
    usual = next((cell for cell in cells if cell.is_default), None)
    chosen = usual or best
    alone = next((cell for cell in cells if cell.engine == chosen.engine and cell.workers == 1), None)
    return BenchResult(
        tokenizer=measured.request.job.tokenizer.name,
        cores=cores,
        is_made_up=measured.is_made_up,
        sample_bytes=measured.by.readings.text_bytes,
        sample_times=round(measured.by.times, 1),
        written_to=os.path.dirname(measured.by.folder.root),
        start_seconds=round(measured.start_seconds(chosen), 2),
        cells=cells,
        noise=round(max(cell.noise for cell in cells), 3),
        corpus=corpus,
        best=told(best),
        default=None if usual is None else told(usual),
        price_per_core_hour=price,
        limit=limit(chosen, alone, cores),
        seconds=round(seconds, 1),
        notices=[*_few_units(measured, told(chosen)), *_notices(measured)],
    )


def _corpus(measured: MeasuredCells) -> Corpus:
    """All of the sources: what was found in the sample, as many times over as they are larger."""
    request, sample, found = measured.request, measured.by.draw.sample, measured.found
    counted = sample.rows if sample.source_bytes == request.source_bytes else None
    return corpus_of(
        sources=len(request.discovery.table),
        source_bytes=request.source_bytes,
        text_bytes=found.text_bytes * measured.times,
        documents=counted if counted is not None else found.documents * measured.times,
        tokens=found.tokens * measured.times,
        token_bytes=np.dtype(request.job.tokenizer.dtype).itemsize,
    )


def _made_up_corpus(measured: MeasuredCells) -> Corpus:
    """A terabyte of such text, to have something to tell hours of."""
    small = _corpus(measured)
    times = MADE_UP_CORPUS_BYTES / small.text_bytes
    return corpus_of(
        sources=0,
        source_bytes=round(small.source_bytes * times),
        text_bytes=MADE_UP_CORPUS_BYTES,
        documents=small.documents * times,
        tokens=small.tokens * times,
        token_bytes=small.token_bytes,
    )


def _few_units(measured: MeasuredCells, told: Forecast) -> Iterator[str]:
    if told.busy_workers < MAX_BUSY * told.workers:
        units = f"{count(measured.units(), 'unit')} for {count(told.workers, 'worker')}"
        busy = f"{told.busy_workers:.1f} of them have work on average"
        yield f"{units}: {busy}, since a compressed file or a row group is never cut"


def _notices(measured: MeasuredCells) -> Iterator[str]:
    """What a person should know of the sample, the engine and the place."""
    request, times, held = measured.request, measured.by.times, measured.found.text_bytes
    yield from request.named.notes
    if held < SMALL_BYTES:
        yield f"the sample holds {size(held)} of text: too little for these figures to mean anything"
    elif times > AGAIN and not measured.is_made_up:
        yield f"the sample was used {times:.0f} times over, and known words are fast: a long run may be slower"
    if measured.found.is_guessed:
        yield "how much text there is, is a guess from the size of compressed files: tokens and time may be far off"
    if request.choice.reason:
        yield request.choice.reason
    if measured.means.notice:
        yield measured.means.notice
    yield from request.discovery.ignored.notes()
    root = measured.by.folder.root
    if is_in_memory(os.path.dirname(root)):
        yield f"{os.path.dirname(root)} is in memory, which is no disk: measure yours with --out"
    yield from measured.by.notices
