"""What `bench` measures on: units from all over the corpus, whatever its size."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import SourceError
from tokenmill.pipeline import plan
from tokenmill.pipeline.freeze import plan_step
from tokenmill.pipeline.split_sources import plan_units
from tokenmill.sources.delimited import codec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tokenmill.executors.outcomes import Executor
    from tokenmill.pipeline.plan import UnitTask
    from tokenmill.pipeline.request import PrepareRequest

PLACES = 32
"""At how many places of a large corpus files are taken."""

FILES_AT_A_PLACE = 128
GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it, without their whole parts, fall evenly between 0 and 1, however many there are."""


def spread_files(sources: pa.Table, least_bytes: int) -> pa.Table:
    """Some of the sources: all of a small corpus; of a large one, files at places that are evenly spread over it.

    At each place there are as many as it takes to have `least_bytes`, if they are small.
    """
    ends = np.cumsum(sources["size"].to_numpy())
    if len(sources) <= PLACES:
        return sources
    chosen: set[int] = set()
    for place in np.linspace(0, float(ends[-1]), PLACES, endpoint=False):
        first = int(np.searchsorted(ends, place, side="right"))
        stop = int(np.searchsorted(ends, place + least_bytes)) + 1
        chosen.update(range(first, min(stop, first + FILES_AT_A_PLACE, len(sources))))
    return sources.take(pa.array(sorted(chosen)))


@dataclass(frozen=True, slots=True)
class BenchSample:
    """Sources of all or some of the corpus, and the units that they are cut into."""

    sources: pa.Table
    units: pa.Table

    @property
    def source_bytes(self) -> int:
        """The size of these sources."""
        return int(self.sources["size"].to_numpy().sum())

    @property
    def planned(self) -> npt.NDArray[np.int64]:
        """The text of each unit, as the plan has it."""
        planned: npt.NDArray[np.int64] = self.units["text_bytes"].to_numpy()
        return planned

    @property
    def planned_bytes(self) -> int:
        """All of it."""
        return int(self.planned.sum())

    def kinds(self) -> list[str]:
        """What each unit is cut from: the plan knows more of one kind than of another."""
        paths, kinds = self.sources["path"].to_pylist(), self.sources["kind"].to_pylist()
        of_source = [codec_of(path) or kind for path, kind in zip(paths, kinds, strict=True)]
        return [of_source[source] for source in self.units["source"].to_pylist()]

    @property
    def rows(self) -> int | None:
        """Their rows, if they tell them."""
        return None if self.units["rows"].null_count else int(self.units["rows"].to_numpy().sum())


def take_sample(request: PrepareRequest, executor: Executor, pending: Callable[[str], None]) -> BenchSample:
    """The sample of a request: only its files are looked into, so a corpus may have any size."""
    sources = spread_files(request.discovery.table, request.job.unit_bytes)
    told = plan_step(sources, "of the sample planned", pending)
    units = plan_units(sources, request.options, request.job.unit_bytes, None, executor, on_progress=told)
    sample = BenchSample(sources, units)
    if not sample.planned_bytes:
        raise SourceError("there is no text in the sources", f"file         {sources['path'][0].as_py()}")
    return sample


@dataclass
class Draw:
    """Units of a sample, one after the other, from all over it; from the start again when they are used up."""

    sample: BenchSample
    most_bytes: int | None = None
    order: list[int] = field(init=False)
    _tasks: Iterator[tuple[int, UnitTask]] = field(init=False)

    def __post_init__(self) -> None:
        planned = self.sample.planned
        order = np.argsort(np.arange(len(planned)) * GOLDEN % 1)
        if self.most_bytes is not None:  # the first one is taken in any case, and broken off if it has more
            fitting = int(np.searchsorted(np.cumsum(planned[order]), self.most_bytes, side="right"))
            order = order[: max(fitting, 1)]
        self.order = order.tolist()
        endless = itertools.cycle(self.order)
        self._tasks = enumerate(plan.tasks(self.sample.units, self.sample.sources, endless))

    def next(self) -> UnitTask:
        """The next unit, under a number that no other has had."""
        number, task = next(self._tasks)
        return msgspec.structs.replace(task, unit=number)

    def place(self, task: UnitTask) -> int:
        """The place in the sample of a unit that was drawn."""
        return self.order[task.unit % len(self.order)]
