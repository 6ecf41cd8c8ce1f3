"""The sample that `bench` measures: units from the whole corpus, whatever its size."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import SourceError
from tokenmill.pipeline.planning.freeze import plan_step
from tokenmill.pipeline.planning.split_sources import plan_units
from tokenmill.pipeline.unit.plan import tasks
from tokenmill.sources.delimited import codec_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tokenmill.executors.outcomes import Executor
    from tokenmill.pipeline.planning.request import PrepareRequest
    from tokenmill.pipeline.unit.plan import UnitTask

# The number of offsets in a large corpus at which files are taken.
OFFSETS = 32
MAX_FILES_PER_OFFSET = 128
# The fractional parts of its multiples are evenly spread over 0 to 1, however many there are.
GOLDEN_RATIO = (5**0.5 - 1) / 2


def spread_files(sources: pa.Table, min_bytes: int) -> pa.Table:
    """All sources of a small corpus. Of a large one, files at evenly spread offsets.

    At each offset, as many files are taken as it needs to have `min_bytes`.
    """
    ends = np.cumsum(sources["size"].to_numpy())
    if len(sources) <= OFFSETS:
        return sources
    chosen: set[int] = set()
    for offset in np.linspace(0, float(ends[-1]), OFFSETS, endpoint=False):
        first = int(np.searchsorted(ends, offset, side="right"))
        stop = int(np.searchsorted(ends, offset + min_bytes)) + 1
        chosen.update(range(first, min(stop, first + MAX_FILES_PER_OFFSET, len(sources))))
    return sources.take(pa.array(sorted(chosen)))


@dataclass(frozen=True, slots=True)
class BenchSample:
    """All or some sources of the corpus, and their units."""

    sources: pa.Table
    units: pa.Table

    @property
    def source_bytes(self) -> int:
        """The size of these sources."""
        return int(self.sources["size"].to_numpy().sum())

    @property
    def unit_bytes(self) -> npt.NDArray[np.int64]:
        """The text bytes of each unit, as planned."""
        unit_bytes: npt.NDArray[np.int64] = self.units["text_bytes"].to_numpy()
        return unit_bytes

    @property
    def text_bytes(self) -> int:
        """The text bytes of all units, as planned."""
        return int(self.unit_bytes.sum())

    def kinds(self) -> list[str]:
        """The kind of file of each unit. The error of the planned sizes differs by kind."""
        paths, kinds = self.sources["path"].to_pylist(), self.sources["kind"].to_pylist()
        of_source = [codec_of(path) or kind for path, kind in zip(paths, kinds, strict=True)]
        return [of_source[source] for source in self.units["source"].to_pylist()]

    @property
    def rows(self) -> int | None:
        """The number of rows, if the plan has it for every unit."""
        return None if self.units["rows"].null_count else int(self.units["rows"].to_numpy().sum())


def take_sample(request: PrepareRequest, executor: Executor, pending: Callable[[str], None]) -> BenchSample:
    """The sample of a request. Only its files are opened, so a corpus may have any size."""
    sources = spread_files(request.discovery.table, request.job.unit_bytes)
    told = plan_step(sources, "of the sample planned", pending)
    units = plan_units(sources, request.options, request.job.unit_bytes, None, executor, on_progress=told)
    sample = BenchSample(sources, units)
    if not sample.text_bytes:
        raise SourceError("there is no text in the sources", f"file         {sources['path'][0].as_py()}")
    return sample


@dataclass
class UnitDraw:
    """An endless sequence of the units of a sample, neighbors far apart. With `max_bytes`, of some of its units."""

    sample: BenchSample
    max_bytes: int | None = None
    order: list[int] = field(init=False)
    _tasks: Iterator[tuple[int, UnitTask]] = field(init=False)

    def __post_init__(self) -> None:
        unit_bytes = self.sample.unit_bytes
        order = np.argsort(np.arange(len(unit_bytes)) * GOLDEN_RATIO % 1)
        if self.max_bytes is not None:  # at least one unit; measuring stops within it if it is larger
            fitting = int(np.searchsorted(np.cumsum(unit_bytes[order]), self.max_bytes, side="right"))
            order = order[: max(fitting, 1)]
        self.order = order.tolist()
        endless = itertools.cycle(self.order)
        self._tasks = enumerate(tasks(self.sample.units, self.sample.sources, endless))

    def next(self) -> UnitTask:
        """The next unit, with a unit number of its own."""
        number, task = next(self._tasks)
        return msgspec.structs.replace(task, unit=number)

    def sample_index(self, task: UnitTask) -> int:
        """The index in the sample of a drawn unit."""
        return self.order[task.unit % len(self.order)]
