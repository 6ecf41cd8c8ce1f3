"""From what was measured to what a whole corpus takes: arithmetic, and one sentence on what limits it."""

from __future__ import annotations

import math

import msgspec

from tokenmill.api.estimate import ROW_BYTES
from tokenmill.timing import Steps

DAY_SECONDS = 86_400.0
BUSY = 0.75
"""A step whose time is the processor's by at least this share is work; below it, waiting."""

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
    takes to be done within 24 hours.
    """

    engine: str
    workers: int
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


def forecast(cell: Cell, corpus: Corpus, *, start_seconds: float, cores: int, price: float | None) -> Forecast:
    """The time, work and money that a corpus takes; starting up is counted once."""
    work_seconds = corpus.text_bytes / cell.bytes_per_second
    seconds = start_seconds + work_seconds
    core_hours = seconds * min(cell.workers, cores) / 3600
    return Forecast(
        engine=cell.engine,
        workers=cell.workers,
        seconds=round(seconds, 2),
        hours=round(seconds / 3600, 4),
        core_hours=round(core_hours, 4),
        money=None if price is None else round(core_hours * price, 4),
        machines_for_a_day=math.ceil(seconds / DAY_SECONDS),
        source_bytes_per_second=round(corpus.source_bytes / work_seconds) if work_seconds else 0.0,
    )


def limit(cell: Cell, alone: Cell | None, cores: int) -> str:
    """What keeps this cell from being faster; `alone` is the same engine with one worker."""
    wall, cpu = msgspec.structs.asdict(cell.wall_seconds), msgspec.structs.asdict(cell.cpu_seconds)
    step = max(wall, key=wall.__getitem__)
    share = f"{wall[step] / (cell.wall_seconds.total or 1):.0%} of the workers' time"
    works = cpu[step] >= BUSY * wall[step] * min(1.0, cores / cell.workers)
    if step == "read":
        why = "decompressing and checking text: more cores help" if works else "waiting for the disk or the network"
        return f"reading limits, {share}: {why}"
    if step == "write":
        return f"writing limits, {share}: " + ("more cores help" if works else "waiting for the disk")
    what = "encoding" if step == "encode" else "checksums and joining"
    if not works:
        got = f"gets {cpu[step] / wall[step]:.0%} of a core"
        return f"{what} limits, {share}, and {got}: something else is at work here, so measure again later"
    if alone is not None and 1 < cell.workers <= cores and not _scales(cell, alone):
        gain = cell.bytes_per_second / alone.bytes_per_second
        return f"{what} limits, {share}; {cell.workers} workers give {gain:.1f} times one: cores share what they need"
    return f"{what} limits, {share}: more cores help"


def _scales(cell: Cell, alone: Cell) -> bool:
    return cell.bytes_per_second >= alone.bytes_per_second * (1 + SCALES * (cell.workers - 1))
