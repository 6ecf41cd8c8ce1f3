"""Computes the time and cost of a whole corpus from measured rates, and names the limiting step."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

import msgspec

from tokenmill.humanize import Readable
from tokenmill.pipeline.bench.timing import Steps
from tokenmill.pipeline.planning.estimate import ROW_BYTES, Footprint

if TYPE_CHECKING:
    from collections.abc import Iterable

DAY_SECONDS = 86_400.0
# A step computes if at least this fraction of its time is processor time. Below, it waits.
MIN_CPU_FRACTION = 0.75
# The same on a machine where workers do not get their cores: there, all steps wait for the processor as well.
MIN_CPU_FRACTION_DISTURBED = 0.25
STEP_NAMES = {"read": "reading", "encode": "encoding", "check": "checksums and joining", "write": "writing"}
WAITING = {"read": "the disk or the network", "write": "the disk"}
# What another worker with a core of its own should add, as a fraction of the rate of one.
MIN_GAIN_PER_WORKER = 0.7


class Cell(Readable, msgspec.Struct, frozen=True):
    """The rate of an engine with a number of workers, in its fastest and its slowest round."""

    engine: str
    workers: int
    is_default: bool
    rounds: int
    text_bytes: int
    bytes_per_second: float
    slowest_bytes_per_second: float
    tokens_per_second: float
    wall_seconds: Steps
    cpu_seconds: Steps
    shares: Steps

    @property
    def noise(self) -> float:
        """By what fraction the slowest round was slower than the fastest."""
        return 1 - self.slowest_bytes_per_second / self.bytes_per_second


class Corpus(Readable, msgspec.Struct, frozen=True):
    """All of the sources, counted or estimated from the sample. Without sources, an amount of made-up text."""

    sources: int
    source_bytes: int
    text_bytes: int
    documents: int
    tokens: int
    bytes_per_token: float
    token_bytes: int
    store_bytes: int
    export_bytes: int


class Forecast(Readable, msgspec.Struct, frozen=True):
    """The time and cost of the whole corpus with one engine and number of workers.

    A core-hour is an hour of one worker, at most one per core. `machines_for_a_day` is the number of machines like this
    one that finish within 24 hours. `busy_workers` is the average number of workers that have work.
    """

    engine: str
    workers: int
    busy_workers: float
    seconds: float
    hours: float
    core_hours: float
    money: float | None
    machines_for_a_day: int
    source_bytes_per_second: float


def make_corpus(  # noqa: PLR0913 - the figures of a corpus
    *, sources: int, source_bytes: int, text_bytes: float, documents: float, tokens: float, token_bytes: int
) -> Corpus:
    """A corpus, with the figures that follow from the given ones."""
    return Corpus(
        sources=sources,
        source_bytes=source_bytes,
        text_bytes=round(text_bytes),
        documents=round(documents),
        tokens=round(tokens),
        bytes_per_token=round(text_bytes / tokens, 2) if tokens else 0.0,
        token_bytes=token_bytes,
        store_bytes=Footprint(token_bytes, ROW_BYTES).bytes(round(tokens), round(documents)),
        export_bytes=round(tokens) * token_bytes,
    )


def average_busy_workers(unit_bytes: Iterable[float], workers: int) -> float:
    """The average number of workers that have work, if each takes the next unit when it is free."""
    total, until = 0.0, [0.0] * workers
    for size in unit_bytes:
        total += size
        heapq.heapreplace(until, until[0] + size)
    return total / max(until) if total else float(workers)


def forecast(  # noqa: PLR0913 - all that the time and cost depend on
    cell: Cell, corpus: Corpus, *, start_seconds: float, cores: int, price: float | None, busy: float | None = None
) -> Forecast:
    """The time, core-hours and money for a corpus. The start-up time counts once.

    `busy` is the average number of workers that have work, if not all of them.
    """
    busy = cell.workers if busy is None else busy
    work_seconds = corpus.text_bytes / (cell.bytes_per_second * busy / cell.workers)
    seconds = start_seconds + work_seconds
    core_hours = seconds * min(cell.workers, cores) / 3600
    return Forecast(
        engine=cell.engine,
        workers=cell.workers,
        busy_workers=round(busy, 2),
        seconds=round(seconds, 2),
        hours=round(seconds / 3600, 4),
        core_hours=round(core_hours, 4),
        money=None if price is None else round(core_hours * price, 4),
        machines_for_a_day=math.ceil(seconds / DAY_SECONDS),
        source_bytes_per_second=round(corpus.source_bytes / work_seconds) if work_seconds else 0.0,
    )


def describe_limit(cell: Cell, alone: Cell | None, cores: int) -> str:
    """One sentence on what keeps this cell from being faster. `alone` is the same engine with one worker."""
    wall = msgspec.structs.asdict(cell.wall_seconds)
    step = max(wall, key=wall.__getitem__)
    limits = f"{STEP_NAMES[step]} limits, {wall[step] / (cell.wall_seconds.total or 1):.0%} of the workers' time"
    # Encoding never waits, so its fraction of processor time is the fraction of a core that a worker gets.
    got = _cpu_fraction(cell, "encode" if step in WAITING else step)
    is_disturbed = got < MIN_CPU_FRACTION * min(1.0, cores / cell.workers)
    threshold = MIN_CPU_FRACTION_DISTURBED if is_disturbed else MIN_CPU_FRACTION
    if step in WAITING and _cpu_fraction(cell, step) < got * threshold:
        return f"{limits}: waiting for {WAITING[step]}"
    if is_disturbed:
        return f"{limits}; a worker gets {got:.0%} of a core: other processes use this machine, so measure again later"
    if step in WAITING:
        return f"{limits}: {'decompressing and checking text: ' if step == 'read' else ''}more cores help"
    if alone is not None and 1 < cell.workers <= cores:
        gain = cell.bytes_per_second / alone.bytes_per_second
        if gain < 1 + MIN_GAIN_PER_WORKER * (cell.workers - 1):
            return f"{limits}; {cell.workers} workers give {gain:.1f} times one: cores share what they need"
    return f"{limits}: more cores help"


def _cpu_fraction(cell: Cell, step: str) -> float:
    """The processor time of a step divided by its wall time. 1 if the step takes no time."""
    wall: float = getattr(cell.wall_seconds, step)
    cpu: float = getattr(cell.cpu_seconds, step)
    return cpu / wall if wall else 1.0
