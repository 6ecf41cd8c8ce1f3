"""The cells of `bench`: each engine with each number of workers, measured in turn, more than once where time allows."""

from __future__ import annotations

import itertools
import math
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenmill.errors import SourceError
from tokenmill.executors.fan_out import run_all
from tokenmill.executors.outcomes import RetryPolicy
from tokenmill.humanize import count, duration
from tokenmill.pipeline.bench.measurement import Measurement
from tokenmill.pipeline.bench.readings import Readings
from tokenmill.pipeline.bench.timing import TimedTokenize
from tokenmill.pipeline.sample import raise_failure
from tokenmill.store.part import part_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokenmill.executors.outcomes import Died, Executor
    from tokenmill.executors.progress import Reporter
    from tokenmill.pipeline.bench.sample import Draw
    from tokenmill.pipeline.bench.timing import Timing
    from tokenmill.pipeline.plan import UnitTask
    from tokenmill.pipeline.units import WorkerLimits
    from tokenmill.storage import Folder
    from tokenmill.store.job import Job

FIRST_BYTES = 1 << 20
"""How much text is given to an engine of which nothing is known yet."""

MIN_BYTES = 256 << 10
PIECES = 6
"""How many units a worker should get through in a cell; more of them, and what each costs by itself counts more."""

WARM_SECONDS = 0.5
MAX_CELL_SECONDS = 5.0
MIN_CELL_SECONDS = 0.5
MAX_ROUNDS = 3
TRIES = 3
"""How often a turn is tried in which workers die."""


@dataclass(frozen=True, slots=True)
class CellSchedule:
    """How the time is shared out: so many rounds through all cells, so many seconds for each."""

    rounds: int
    cell_seconds: float


def schedule(seconds: float, engines: int, counts: int) -> CellSchedule:
    """At least two rounds, if that leaves enough for each cell; three if there is time."""
    each = [(rounds, (seconds / rounds / engines - WARM_SECONDS) / counts) for rounds in (MAX_ROUNDS, 2, 1)]
    least = {MAX_ROUNDS: MAX_CELL_SECONDS / 2, 2: MIN_CELL_SECONDS, 1: -math.inf}
    rounds, cell_seconds = next((rounds, each) for rounds, each in each if each >= least[rounds])
    return CellSchedule(rounds, min(max(cell_seconds, MIN_CELL_SECONDS / 10), MAX_CELL_SECONDS))


@dataclass
class Cells:
    """Measures cells with the workers of an executor, which write real parts into a folder; these are then removed."""

    executor: Executor
    folder: Folder
    job: Job
    limits: WorkerLimits
    draw: Draw
    ahead: int
    report: Reporter
    start_seconds: dict[str, float] = field(default_factory=dict)
    notices: dict[str, None] = field(default_factory=dict)
    readings: Readings = field(default_factory=Readings)
    text_bytes: int = 0
    _pace: dict[str, float] = field(default_factory=dict)

    def measure(
        self, engines: Sequence[str], counts: Sequence[int], seconds: float
    ) -> dict[tuple[str, int], list[Measurement]]:
        """The turns of all cells, a round after the other: what disturbs the machine for a while disturbs all alike.

        An engine begins with the most workers, so that each of them loads it once a round, before anything counts.
        """
        planned = schedule(seconds, len(engines), len(counts))
        turns: dict[tuple[str, int], list[Measurement]] = {(engine, n): [] for engine in engines for n in counts}
        done = 0
        for number, engine in itertools.product(range(planned.rounds), engines):
            self.report.pending(f"starting     {engine}")
            self._warm_up(engine, max(counts), planned.cell_seconds)
            for workers in sorted(counts, reverse=True):
                left = duration((planned.rounds * len(turns) - done) * planned.cell_seconds)
                which = f"round {number + 1} of {planned.rounds}, about {left} left"
                self.report.pending(f"measuring    {engine} with {count(workers, 'worker')}; {which}")
                turns[engine, workers].append(self._turn(engine, workers, planned.cell_seconds))
                done += 1
        return turns

    @property
    def times(self) -> float:
        """How many times over text of the sample has been used."""
        return self.text_bytes / self.readings.text_bytes

    def _warm_up(self, engine: str, workers: int, cell_seconds: float) -> None:
        """Let every worker load the engine, which is told apart, and meet the words that every text has."""
        first = self._turn(engine, workers, 0.0)
        self.start_seconds[engine] = min(first.load_seconds, self.start_seconds.get(engine, first.load_seconds))
        self._turn(engine, workers, min(WARM_SECONDS, cell_seconds / 2))

    def _turn(self, engine: str, workers: int, seconds: float) -> Measurement:
        """A turn in which no worker died, if there is one to be had: those of a team that was not whole tell little."""
        for _ in range(TRIES):
            turn = self._try_turn(engine, workers, seconds)
            if not turn.deaths:
                break
            self.notices[_told(turn.deaths[0], engine, workers)] = None
        self._pace[engine] = turn.text_bytes / turn.wall.total
        return turn

    def _try_turn(self, engine: str, workers: int, seconds: float) -> Measurement:
        """Give out units for so many seconds, at least one to each worker, and wait for the last of them.

        If there is no text in them, others follow, until all have been seen.
        """
        turn = Measurement(workers)
        most_bytes = self._most_bytes(engine, seconds)
        function: Callable[[UnitTask], Any] = TimedTokenize(self.folder.root, self.job, engine, self.limits, most_bytes)
        given = self._run(function, turn, turn.begun + seconds)
        while not turn.text_bytes:
            if given >= len(self.draw.order):
                raise _no_text(self.draw)
            given += self._run(function, turn, time.monotonic())
        return turn

    def _run(self, function: Callable[[UnitTask], Any], turn: Measurement, until: float) -> int:
        """Let the workers do units until then, and tell how many it were."""
        given = 0
        for done in run_all(
            self.executor,
            function,
            self._tasks(turn.workers, until),
            policy=RetryPolicy(workers=turn.workers, prefetch=self.ahead),
            on_death=turn.deaths.append,
            on_failure=raise_failure,
        ):
            turn.add(done.value, done.worker.pid)
            self._take(done.value, done.item)
            given += 1
        return given

    def _take(self, timing: Timing, task: UnitTask) -> None:
        self.text_bytes += timing.text_bytes
        self.readings.take(self.draw.place(task), task, timing)
        self.notices.update(dict.fromkeys(timing.notices))
        self.folder.discard(part_name(task.unit))

    def _most_bytes(self, engine: str, seconds: float) -> int:
        """How much of a unit a worker is given: what it gets through several times in the time there is."""
        pace, most = self._pace.get(engine), self.draw.most_bytes
        wanted = FIRST_BYTES if pace is None else max(MIN_BYTES, round(pace * seconds / (PIECES + 2 * self.ahead)))
        return wanted if most is None else max(1, min(wanted, most))

    def _tasks(self, least: int, until: float) -> Iterator[UnitTask]:
        for given in itertools.count():
            if given >= least and time.monotonic() >= until:
                return
            yield self.draw.next()


def _told(death: Died[Any], engine: str, workers: int) -> str:
    left = f"; {count(death.workers, 'worker')} went on" if death.workers < workers else ""
    cell = f"{engine} was measured with {count(workers, 'worker')}"
    return f"a worker {death.how} while {cell}, which was thrown away and done again{left}"


def _no_text(draw: Draw) -> SourceError:
    advice = "Every row of it is empty: is it the right --column?"
    if len(draw.order) < len(draw.sample.units):
        advice = "Every row of it is empty: give more --sample-bytes, or is it the wrong --column?"
    return SourceError("there is no text in the sample", advice)
