"""Measures the cells of `bench`: each engine with each number of workers, in several rounds if time allows."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenmill.errors import SourceError
from tokenmill.executors.fan_out import run_all
from tokenmill.executors.retry_policy import RetryPolicy
from tokenmill.humanize import count, duration
from tokenmill.pipeline.bench.measurement import Measurement
from tokenmill.pipeline.bench.readings import Readings
from tokenmill.pipeline.bench.timing import TimedTokenize
from tokenmill.pipeline.planning.sample import raise_failure
from tokenmill.store.part import part_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokenmill.executors.outcomes import Died, Executor
    from tokenmill.executors.progress import Reporter
    from tokenmill.pipeline.bench.sample import UnitDraw
    from tokenmill.pipeline.bench.timing import Timing
    from tokenmill.pipeline.unit.documents import WorkerLimits
    from tokenmill.pipeline.unit.plan import UnitTask
    from tokenmill.storage import Folder
    from tokenmill.store.job import Job

# Text per unit for an engine whose rate is not known yet.
FIRST_BYTES = 1 << 20
MIN_BYTES = 256 << 10
# Units per worker in a measurement. With more of them, the fixed cost of a unit counts too much.
UNITS_PER_WORKER = 6
WARM_SECONDS = 0.5
MAX_CELL_SECONDS = 5.0
MIN_CELL_SECONDS = 0.5
MAX_ROUNDS = 3
# How often a measurement is tried in which workers die.
MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class CellSchedule:
    """The number of rounds over all cells, and the seconds for each measurement."""

    rounds: int
    cell_seconds: float


def schedule(seconds: float, engines: int, counts: int) -> CellSchedule:
    """Two rounds if that leaves enough time per cell, three if there is plenty, otherwise one."""
    min_seconds = {MAX_ROUNDS: MAX_CELL_SECONDS / 2, 2: MIN_CELL_SECONDS, 1: -math.inf}
    for rounds, minimum in min_seconds.items():
        cell_seconds = (seconds / rounds / engines - WARM_SECONDS) / counts
        if cell_seconds >= minimum:
            break
    return CellSchedule(rounds, min(max(cell_seconds, MIN_CELL_SECONDS / 10), MAX_CELL_SECONDS))


@dataclass
class CellRunner:
    """Measures cells with the workers of an executor. Workers write real parts to a folder, which are then removed."""

    executor: Executor
    folder: Folder
    job: Job
    limits: WorkerLimits
    draw: UnitDraw
    prefetch: int
    report: Reporter
    start_seconds: dict[str, float] = field(default_factory=dict)
    notices: dict[str, None] = field(default_factory=dict)
    readings: Readings = field(default_factory=Readings)
    text_bytes: int = 0
    _rates: dict[str, float] = field(default_factory=dict)

    def measure(
        self, engines: Sequence[str], counts: Sequence[int], seconds: float
    ) -> dict[tuple[str, int], list[Measurement]]:
        """The measurements of all cells. Rounds spread a temporary disturbance of the machine over all cells.

        An engine begins with the most workers, so that each of them loads it before anything counts.
        """
        planned = schedule(seconds, len(engines), len(counts))
        cells: dict[tuple[str, int], list[Measurement]] = {(engine, n): [] for engine in engines for n in counts}
        done = 0
        for number, engine in itertools.product(range(planned.rounds), engines):
            self.report.pending(f"starting     {engine}")
            self._warm_up(engine, max(counts), planned.cell_seconds)
            for workers in sorted(counts, reverse=True):
                left = duration((planned.rounds * len(cells) - done) * planned.cell_seconds)
                progress = f"round {number + 1} of {planned.rounds}, about {left} left"
                self.report.pending(f"measuring    {engine} with {count(workers, 'worker')}; {progress}")
                cells[engine, workers].append(self._measure_cell(engine, workers, planned.cell_seconds))
                done += 1
        return cells

    @property
    def times(self) -> float:
        """How many times the text of the sample was used on average."""
        return self.text_bytes / self.readings.text_bytes

    def _warm_up(self, engine: str, workers: int, cell_seconds: float) -> None:
        """Let every worker load the engine, which is timed separately, and fill its cache with common words."""
        first = self._measure_cell(engine, workers, 0.0)
        self.start_seconds[engine] = min(first.load_seconds, self.start_seconds.get(engine, first.load_seconds))
        self._measure_cell(engine, workers, min(WARM_SECONDS, cell_seconds / 2))

    def _measure_cell(self, engine: str, workers: int, seconds: float) -> Measurement:
        """A measurement in which no worker died, or the last attempt: with fewer workers, a rate means little."""
        for _ in range(MAX_ATTEMPTS):
            measurement = self._attempt(engine, workers, seconds)
            if not measurement.deaths:
                break
            self.notices[_death_notice(measurement.deaths[0], engine, workers)] = None
        self._rates[engine] = measurement.text_bytes / measurement.wall.total
        return measurement

    def _attempt(self, engine: str, workers: int, seconds: float) -> Measurement:
        """Run units for so many seconds, at least one per worker. If they have no text, run more until all were run."""
        measurement = Measurement(workers)
        max_bytes = self._max_bytes(engine, seconds)
        function: Callable[[UnitTask], Any] = TimedTokenize(self.folder.root, self.job, engine, self.limits, max_bytes)
        done = self._run(function, measurement, measurement.started + seconds)
        while not measurement.text_bytes:
            if done >= len(self.draw.order):
                raise _no_text(self.draw)
            done += self._run(function, measurement, time.monotonic())
        return measurement

    def _run(self, function: Callable[[UnitTask], Any], measurement: Measurement, until: float) -> int:
        """Run units until this time, and return how many."""
        units = 0
        for done in run_all(
            self.executor,
            function,
            self._tasks(measurement.workers, until),
            policy=RetryPolicy(workers=measurement.workers, prefetch=self.prefetch),
            on_death=measurement.deaths.append,
            on_failure=raise_failure,
        ):
            measurement.add(done.value, done.worker.pid)
            self._add(done.value, done.item)
            units += 1
        return units

    def _add(self, timing: Timing, task: UnitTask) -> None:
        self.text_bytes += timing.text_bytes
        self.readings.add(self.draw.sample_index(task), task, timing)
        self.notices.update(dict.fromkeys(timing.notices))
        self.folder.discard(part_name(task.unit))

    def _max_bytes(self, engine: str, seconds: float) -> int:
        """The text per unit with which a worker does several units in the time there is."""
        rate, limit = self._rates.get(engine), self.draw.max_bytes
        units = UNITS_PER_WORKER + 2 * self.prefetch
        wanted = FIRST_BYTES if rate is None else max(MIN_BYTES, round(rate * seconds / units))
        return wanted if limit is None else max(1, min(wanted, limit))

    def _tasks(self, minimum: int, until: float) -> Iterator[UnitTask]:
        for number in itertools.count():
            if number >= minimum and time.monotonic() >= until:
                return
            yield self.draw.next()


def _death_notice(death: Died[Any], engine: str, workers: int) -> str:
    left = f"; {count(death.workers, 'worker')} went on" if death.workers < workers else ""
    cell = f"{engine} was measured with {count(workers, 'worker')}"
    return f"a worker {death.how} while {cell}, which was thrown away and done again{left}"


def _no_text(draw: UnitDraw) -> SourceError:
    advice = "Every row of it is empty: is it the right --column?"
    if len(draw.order) < len(draw.sample.units):
        advice = "Every row of it is empty: give more --sample-bytes, or is it the wrong --column?"
    return SourceError("there is no text in the sample", advice)
