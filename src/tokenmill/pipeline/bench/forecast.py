"""From what was measured to what a whole corpus takes: arithmetic, and one sentence on what limits it."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

import msgspec

from tokenmill.pipeline.bench.timing import Steps
from tokenmill.pipeline.sample import ROW_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

DAY_SECONDS = 86_400.0
BUSY = 0.75
"""A step whose time is the processor's by at least this share is work; below it, waiting."""

SURELY = 0.25
"""Where workers do not get their cores, all steps wait: only one that waits so much more waits for something else."""

STEPS = {"read": "reading", "encode": "encoding", "check": "checksums and joining", "write": "writing"}
WAITING = {"read": "the disk or the network", "write": "the disk"}
SCALES = 0.7
"""What a further worker should add at the least, where each has a core of its own."""


class Cell(msgspec.Struct, frozen=True):
    """What an engine gives with some workers: the best of its rounds, and the slowest to compare."""

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
        """By what share its slowest round was slower than its best."""
        return 1 - self.slowest_bytes_per_second / self.bytes_per_second


class Corpus(msgspec.Struct, frozen=True):
    """All of the sources, counted or estimated from the sample; or an amount of text, if none were given."""

    sources: int
    source_bytes: int
    text_bytes: int
    documents: int
    tokens: int
    bytes_per_token: float
    token_bytes: int
    store_bytes: int
    export_bytes: int


class Forecast(msgspec.Struct, frozen=True):
    """What the whole corpus takes with one engine and number of workers.

    A core-hour is an hour of a worker, which takes a core; `machines_for_a_day` is how many machines like this one it
    takes to be done within 24 hours. `busy_workers` is how many of the workers have something to do, on average.
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


def corpus_of(  # noqa: PLR0913 - what is known of it
    *, sources: int, source_bytes: int, text_bytes: float, documents: float, tokens: float, token_bytes: int
) -> Corpus:
    """A corpus with what follows from its figures."""
    kept = round(tokens) * token_bytes
    return Corpus(
        sources=sources,
        source_bytes=source_bytes,
        text_bytes=round(text_bytes),
        documents=round(documents),
        tokens=round(tokens),
        bytes_per_token=round(text_bytes / tokens, 2) if tokens else 0.0,
        token_bytes=token_bytes,
        store_bytes=kept + round(documents) * ROW_BYTES,
        export_bytes=kept,
    )


def kept_busy(unit_bytes: Iterable[float], workers: int) -> float:
    """How many workers have something to do on average, if each takes the next unit when it is free."""
    total, until = 0.0, [0.0] * workers
    for each in unit_bytes:
        total += each
        heapq.heapreplace(until, until[0] + each)
    return total / max(until) if total else float(workers)


def forecast(  # noqa: PLR0913 - what is known of it
    cell: Cell, corpus: Corpus, *, start_seconds: float, cores: int, price: float | None, busy: float | None = None
) -> Forecast:
    """The time, work and money that a corpus takes; starting up is counted once.

    `busy` is how many of the workers the units of the corpus keep busy, if it is not all of them.
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


def limit(cell: Cell, alone: Cell | None, cores: int) -> str:
    """What keeps this cell from being faster; `alone` is the same engine with one worker."""
    wall = msgspec.structs.asdict(cell.wall_seconds)
    step = max(wall, key=wall.__getitem__)
    limits = f"{STEPS[step]} limits, {wall[step] / (cell.wall_seconds.total or 1):.0%} of the workers' time"
    got = _processor(cell, "encode" if step in WAITING else step)  # encoding never waits: it gets what there is
    is_disturbed = got < BUSY * min(1.0, cores / cell.workers)
    if step in WAITING and _processor(cell, step) < got * (SURELY if is_disturbed else BUSY):
        return f"{limits}: waiting for {WAITING[step]}"
    if is_disturbed:
        return f"{limits}; a worker gets {got:.0%} of a core: something else is at work here, so measure again later"
    if step in WAITING:
        return f"{limits}: {'decompressing and checking text: ' if step == 'read' else ''}more cores help"
    if alone is not None and 1 < cell.workers <= cores and not _scales(cell, alone):
        gain = cell.bytes_per_second / alone.bytes_per_second
        return f"{limits}; {cell.workers} workers give {gain:.1f} times one: cores share what they need"
    return f"{limits}: more cores help"


def _processor(cell: Cell, step: str) -> float:
    """How much of a core a step has while it goes on; all of one, if it takes no time."""
    wall: float = getattr(cell.wall_seconds, step)
    cpu: float = getattr(cell.cpu_seconds, step)
    return cpu / wall if wall else 1.0


def _scales(cell: Cell, alone: Cell) -> bool:
    return cell.bytes_per_second >= alone.bytes_per_second * (1 + SCALES * (cell.workers - 1))
