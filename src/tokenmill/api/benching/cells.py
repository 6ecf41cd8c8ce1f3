"""The cells of `bench`: each engine with each number of workers, measured in turn, more than once where time allows."""

from __future__ import annotations

import itertools
import math
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenmill.api.benching.forecast import Cell
from tokenmill.api.estimate import successes
from tokenmill.errors import SourceError
from tokenmill.executors.outcomes import Terms
from tokenmill.part import part_name
from tokenmill.timing import Steps, TimedTokenize, Timing
from tokenmill.wording import count, duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokenmill.api.benching.sample import Draw
    from tokenmill.api.progress import Reporter
    from tokenmill.executors.outcomes import Executor
    from tokenmill.job import Job
    from tokenmill.planning import UnitTask
    from tokenmill.storage import Folder
    from tokenmill.work import Limits

FIRST_BYTES = 1 << 20
"""How much text is given to an engine of which nothing is known yet."""

LEAST_BYTES = 256 << 10
PIECES = 6
"""How many units a worker should get through in a cell; more of them, and what each costs by itself counts more."""

WARM_SECONDS = 0.5
MOST_CELL_SECONDS = 5.0
LEAST_CELL_SECONDS = 0.5
MOST_ROUNDS = 3


@dataclass
class Turn:
    """One measurement of a cell: what its workers did, and for how long each was at it."""

    text_bytes: int = 0
    documents: int = 0
    tokens: int = 0
    wall: Steps = field(default_factory=Steps)
    cpu: Steps = field(default_factory=Steps)
    load_seconds: float = 0.0
    worker_bytes: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    worker_seconds: dict[int, float] = field(default_factory=dict)

    begun: float = field(default_factory=time.monotonic)

    def add(self, timing: Timing, pid: int) -> None:
        """A worker has done a unit."""
        self.worker_seconds[pid] = time.monotonic() - self.begun
        self.worker_bytes[pid] += timing.text_bytes
        self.text_bytes += timing.text_bytes
        self.documents += timing.documents
        self.tokens += timing.tokens
        self.wall, self.cpu = self.wall.plus(timing.wall), self.cpu.plus(timing.cpu)
        self.load_seconds = max(self.load_seconds, timing.load_seconds)

    @property
    def bytes_per_second(self) -> float:
        """What the workers get through together while all of them are busy, as they are but at the end of a run."""
        return sum(self.worker_bytes[pid] / seconds for pid, seconds in self.worker_seconds.items())


@dataclass(frozen=True, slots=True)
class Schedule:
    """How the time is shared out: so many rounds through all cells, so many seconds for each."""

    rounds: int
    cell_seconds: float


def schedule(seconds: float, engines: int, counts: int) -> Schedule:
    """At least two rounds, if that leaves enough for each cell; three if there is time."""
    each = [(rounds, (seconds / rounds / engines - WARM_SECONDS) / counts) for rounds in (MOST_ROUNDS, 2, 1)]
    least = {MOST_ROUNDS: MOST_CELL_SECONDS / 2, 2: LEAST_CELL_SECONDS, 1: -math.inf}
    rounds, cell_seconds = next((rounds, each) for rounds, each in each if each >= least[rounds])
    return Schedule(rounds, min(max(cell_seconds, LEAST_CELL_SECONDS / 10), MOST_CELL_SECONDS))


@dataclass
class Cells:
    """Measures cells with the workers of an executor, which write real parts into a folder; these are then removed."""

    executor: Executor
    folder: Folder
    job: Job
    limits: Limits
    draw: Draw
    ahead: int
    report: Reporter
    start_seconds: dict[str, float] = field(default_factory=dict)
    notices: dict[str, None] = field(default_factory=dict)
    total: Turn = field(default_factory=Turn)
    whole_bytes: int = 0
    whole_planned_bytes: int = 0
    _pace: dict[str, float] = field(default_factory=dict)

    def measure(
        self, engines: Sequence[str], counts: Sequence[int], seconds: float
    ) -> dict[tuple[str, int], list[Turn]]:
        """The turns of all cells, a round after the other: what disturbs the machine for a while disturbs all alike.

        An engine begins with the most workers, so that each of them loads it once a round, before anything counts.
        """
        planned = schedule(seconds, len(engines), len(counts))
        turns: dict[tuple[str, int], list[Turn]] = {(engine, n): [] for engine in engines for n in counts}
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
    def found_share(self) -> float:
        """How much text was found in units that were read to their end, for each byte that the plan has of them."""
        return self.whole_bytes / self.whole_planned_bytes if self.whole_planned_bytes else 1.0

    @property
    def times(self) -> float:
        """How many times over the sample has been used."""
        return self.total.text_bytes / (self.draw.text_bytes * self.found_share)

    def _warm_up(self, engine: str, workers: int, cell_seconds: float) -> None:
        """Let every worker load the engine, which is told apart, and meet the words that every text has."""
        first = self._turn(engine, workers, 0.0)
        self.start_seconds[engine] = min(first.load_seconds, self.start_seconds.get(engine, first.load_seconds))
        self._turn(engine, workers, min(WARM_SECONDS, cell_seconds / 2))

    def _turn(self, engine: str, workers: int, seconds: float) -> Turn:
        """Give out units for so many seconds, at least one to each worker, and wait for the last of them."""
        most_bytes = self._most_bytes(engine, seconds)
        function: Callable[[UnitTask], Any] = TimedTokenize(self.folder.root, self.job, engine, self.limits, most_bytes)
        turn = Turn()
        tasks = self._tasks(workers, turn.begun + seconds)
        for done in successes(self.executor.run(function, tasks, Terms(workers=workers, ahead=self.ahead))):
            turn.add(done.value, done.worker.pid)
            self._take(done.value, done.item)
        if not turn.text_bytes:
            raise SourceError("there is no text in the sample", "Every row of it is empty: is it the right --column?")
        self._pace[engine] = turn.text_bytes / turn.wall.total
        return turn

    def _take(self, timing: Timing, task: UnitTask) -> None:
        self.total.add(timing, 0)
        if timing.whole:
            self.whole_bytes += timing.text_bytes
            self.whole_planned_bytes += task.text_bytes
        self.notices.update(dict.fromkeys(timing.notices))
        self.folder.discard(part_name(task.unit))

    def _most_bytes(self, engine: str, seconds: float) -> int:
        """How much of a unit a worker is given: what it gets through several times in the time there is."""
        pace = self._pace.get(engine)
        return FIRST_BYTES if pace is None else max(LEAST_BYTES, round(pace * seconds / (PIECES + 2 * self.ahead)))

    def _tasks(self, least: int, until: float) -> Iterator[UnitTask]:
        for given in itertools.count():
            if given >= least and time.monotonic() >= until:
                return
            yield self.draw.next()


def cell_of(engine: str, workers: int, turns: Sequence[Turn], *, is_default: bool) -> Cell:
    """The best of some turns: nothing makes a machine faster than it is, and much makes it slower."""
    best = max(turns, key=lambda turn: turn.bytes_per_second)
    rate = best.bytes_per_second
    return Cell(
        engine=engine,
        workers=workers,
        is_default=is_default,
        rounds=len(turns),
        text_bytes=best.text_bytes,
        bytes_per_second=round(rate, 1),
        slowest_bytes_per_second=round(min(turn.bytes_per_second for turn in turns), 1),
        tokens_per_second=round(rate * best.tokens / best.text_bytes),
        wall_seconds=best.wall.rounded(),
        cpu_seconds=best.cpu.rounded(),
        shares=best.wall.shares(),
    )
