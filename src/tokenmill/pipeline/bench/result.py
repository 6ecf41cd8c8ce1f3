"""The result of `bench`: the speed of each engine and number of workers, and what it means for the corpus."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tokenmill.humanize import Readable
from tokenmill.pipeline.bench.measure import Speed, Steps
from tokenmill.pipeline.planning.estimate import START_SECONDS, Estimate

# A step computes if at least this fraction of its time is processor time. Below, it waits.
MIN_CPU_FRACTION = 0.75
# The same on a machine where workers do not get their cores: there, all steps wait for the processor as well.
MIN_CPU_FRACTION_DISTURBED = 0.25
STEP_NAMES = {"read": "reading", "encode": "encoding", "write": "writing"}
WAITING = {"read": "the disk or the network", "write": "the disk"}


class Cell(Readable, msgspec.Struct, frozen=True):
    """The speed of an engine with a number of workers in its fastest and its slowest round, and the time of the corpus.

    `shares` are the fractions of the workers' time. A core-hour is an hour of one worker, at most one per core.
    `seconds` and `core_hours` are None without sources.
    """

    engine: str
    workers: int
    is_default: bool
    rounds: int
    bytes_per_second: float
    slowest_bytes_per_second: float
    tokens_per_second: float
    shares: Steps
    limit: str
    seconds: Estimate | None = None
    core_hours: Estimate | None = None

    @property
    def noise(self) -> float:
        """By what fraction the slowest round was slower than the fastest."""
        return 1 - self.slowest_bytes_per_second / self.bytes_per_second


class Corpus(Readable, msgspec.Struct, frozen=True):
    """All of the sources: their files, and their text, documents, tokens and store as ranges, from samples."""

    sources: int
    source_bytes: int
    units: int
    text_bytes: Estimate
    documents: Estimate
    tokens: Estimate
    bytes_per_token: float
    disk_bytes: Estimate


class BenchResult(Readable, msgspec.Struct, frozen=True):
    """What was measured, and the forecast for the corpus, which is None without sources.

    `best` is the fastest cell; `default` has the options that `prepare` would choose, if that cell was measured.
    """

    tokenizer: str
    cores: int
    written_to: str
    cells: list[Cell]
    best: Cell
    default: Cell | None
    corpus: Corpus | None
    notices: list[str]


def make_cell(engine: str, workers: int, speeds: Sequence[Speed], *, is_default: bool, cores: int) -> Cell:
    """The fastest measurement of a cell: other load makes a machine slower, and nothing makes it faster."""
    best = max(speeds, key=lambda speed: speed.bytes_per_second)
    slowest = min(speed.bytes_per_second for speed in speeds)
    return Cell(
        engine=engine,
        workers=workers,
        is_default=is_default,
        rounds=len(speeds),
        bytes_per_second=round(best.bytes_per_second, 1),
        slowest_bytes_per_second=round(slowest, 1),
        tokens_per_second=round(best.bytes_per_second * best.tokens / best.text_bytes),
        shares=Steps(*(round(seconds / best.wall.total, 4) for seconds in msgspec.structs.astuple(best.wall))),
        limit=describe_limit(best, workers, cores),
    )


def with_forecast(cell: Cell, corpus: Corpus, cores: int) -> Cell:
    """The cell with the time that the corpus takes. A unit has one worker."""
    busy = min(cell.workers, corpus.units) / cell.workers
    low, high = corpus.text_bytes.low / cell.bytes_per_second, corpus.text_bytes.high / cell.slowest_bytes_per_second
    seconds = Estimate(*(round(START_SECONDS + text_seconds / busy, 1) for text_seconds in (low, high)))
    core_hours = (round(each * min(cell.workers, cores) / 3600, 4) for each in (seconds.low, seconds.high))
    return msgspec.structs.replace(cell, seconds=seconds, core_hours=Estimate(*core_hours))


def describe_limit(speed: Speed, workers: int, cores: int) -> str:
    """One sentence on what keeps workers from being faster."""
    wall = msgspec.structs.asdict(speed.wall)
    step = max(wall, key=wall.__getitem__)
    limits = f"{STEP_NAMES[step]} takes {wall[step] / speed.wall.total:.0%} of the workers' time"
    # Encoding never waits, so its fraction of processor time is the fraction of a core that a worker gets.
    got = _cpu_fraction(speed, "encode")
    is_disturbed = got < MIN_CPU_FRACTION * min(1.0, cores / workers)
    threshold = MIN_CPU_FRACTION_DISTURBED if is_disturbed else MIN_CPU_FRACTION
    if step in WAITING and _cpu_fraction(speed, step) < got * threshold:
        return f"{limits}, and waits for {WAITING[step]}"
    if is_disturbed:
        return f"{limits}; a worker gets {got:.0%} of a core: other processes use this machine, so measure again later"
    return f"{limits}: more cores help"


def _cpu_fraction(speed: Speed, step: str) -> float:
    """The processor time of a step divided by its wall time. 1 if the step takes no time."""
    wall: float = getattr(speed.wall, step)
    cpu: float = getattr(speed.cpu, step)
    return cpu / wall if wall else 1.0
