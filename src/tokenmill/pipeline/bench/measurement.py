"""One measurement of a cell of `bench`, and the summary of several."""

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
    """One measurement of a cell: the work of each worker, and how long it took."""

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
    started: float = field(default_factory=time.monotonic)

    def add(self, timing: Timing, pid: int) -> None:
        """Add a unit that a worker has done."""
        self.worker_seconds[pid] = time.monotonic() - self.started
        self.worker_bytes[pid] += timing.text_bytes
        self.text_bytes += timing.text_bytes
        self.documents += timing.documents
        self.tokens += timing.tokens
        self.wall, self.cpu = self.wall.plus(timing.wall), self.cpu.plus(timing.cpu)
        self.load_seconds = max(self.load_seconds, timing.load_seconds)

    @property
    def bytes_per_second(self) -> float:
        """The rate while all workers are busy, which in a run is always except at its end.

        A worker that was replaced, for its memory or after a death, must not count beside its replacement.
        """
        if len(self.worker_seconds) > self.workers:
            return self.text_bytes / max(self.worker_seconds.values())
        return sum(self.worker_bytes[pid] / seconds for pid, seconds in self.worker_seconds.items())


def summarize_cell(engine: str, workers: int, measurements: Sequence[Measurement], *, is_default: bool) -> Cell:
    """The fastest measurement of a cell: other load makes a machine slower, and nothing makes it faster."""
    best = max(measurements, key=lambda measurement: measurement.bytes_per_second)
    rate = best.bytes_per_second
    return Cell(
        engine=engine,
        workers=workers,
        is_default=is_default,
        rounds=len(measurements),
        text_bytes=best.text_bytes,
        bytes_per_second=round(rate, 1),
        slowest_bytes_per_second=round(min(measurement.bytes_per_second for measurement in measurements), 1),
        tokens_per_second=round(rate * best.tokens / best.text_bytes),
        wall_seconds=best.wall.rounded(),
        cpu_seconds=best.cpu.rounded(),
        shares=best.wall.fractions(),
    )
