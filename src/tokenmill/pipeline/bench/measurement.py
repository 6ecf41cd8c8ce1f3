"""One measurement of a cell of `bench`, and what a cell comes to after some of them."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenmill.pipeline.bench.forecast import Cell
from tokenmill.pipeline.bench.timing import Steps

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenmill.executors.outcomes import Died
    from tokenmill.pipeline.bench.timing import Timing


@dataclass
class Measurement:
    """One measurement of a cell: what its workers did, and for how long each was at it."""

    workers: int
    text_bytes: int = 0
    documents: int = 0
    tokens: int = 0
    wall: Steps = field(default_factory=Steps)
    cpu: Steps = field(default_factory=Steps)
    load_seconds: float = 0.0
    worker_bytes: defaultdict[int, int] = field(default_factory=lambda: defaultdict(int))
    worker_seconds: dict[int, float] = field(default_factory=dict)
    deaths: list[Died[Any]] = field(default_factory=list)
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
        """What the workers get through together while all of them are busy, as they are but at the end of a run.

        A worker that was replaced, because it held much, or died, is not to count beside the one that came for it.
        """
        if len(self.worker_seconds) > self.workers:
            return self.text_bytes / max(self.worker_seconds.values())
        return sum(self.worker_bytes[pid] / seconds for pid, seconds in self.worker_seconds.items())


def cell_of(engine: str, workers: int, turns: Sequence[Measurement], *, is_default: bool) -> Cell:
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
