"""What was found in each unit of the sample, and so in all of it: a unit that was broken off counts by how much of it
was read.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokenmill.executors.outcomes import Done
from tokenmill.pipeline.bench.compression import Beginning, packed_share
from tokenmill.sources.delimited import EXPECTED_COMPRESSION, codec_of

if TYPE_CHECKING:
    from tokenmill.executors.outcomes import Executor
    from tokenmill.pipeline.bench.sample import BenchSample
    from tokenmill.pipeline.bench.timing import Timing
    from tokenmill.pipeline.plan import UnitTask

MAX_UNPACKED_BYTES = 32 << 20
MAX_FILES = 16
"""Of how many compressed files the beginning is unpacked again, to see how much of the file it was."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A unit, and what was found in it until it ended or was broken off."""

    task: UnitTask
    timing: Timing

    def packed(self) -> Beginning | None:
        """What is to be unpacked to know how much of the unit was read, if it takes that."""
        stop = self.timing.stop
        if stop is None or self.task.rows is not None or not codec_of(self.task.files[stop.file].path):
            return None
        return Beginning(self.task.files[stop.file], min(stop.byte, MAX_UNPACKED_BYTES))

    def share(self, packing: Mapping[str, float]) -> float:
        """How much of the unit was read; `packing` has the bytes that a compressed file has for each of its text."""
        stop, piece = self.timing.stop, self.task.file_slice
        if stop is None:
            return 1.0
        if self.task.rows is not None:
            return _between(self.timing.rows, self.task.rows)
        file = self.task.files[stop.file]
        if piece is not None and not codec_of(file.path):
            return _between(stop.byte - piece.start, piece.stop - piece.start)
        before = sum(each.size for each in self.task.files[: stop.file])
        taken = min(stop.byte * packing.get(file.path, 1.0), file.size)
        return _between(before + taken, sum(each.size for each in self.task.files))


@dataclass(frozen=True, slots=True)
class SampleTotals:
    """What the sample holds: the text of each unit, and all of its documents and tokens."""

    unit_bytes: npt.NDArray[np.float64]
    documents: float
    tokens: float
    is_guessed: bool

    @property
    def text_bytes(self) -> float:
        """All of its text."""
        return float(self.unit_bytes.sum())


@dataclass
class Readings:
    """Of each unit the reading that went the furthest."""

    _furthest: dict[int, Reading] = field(default_factory=dict)

    @property
    def text_bytes(self) -> int:
        """The text that was read, what was read again counted once."""
        return sum(reading.timing.text_bytes for reading in self._furthest.values())

    def take(self, unit: int, task: UnitTask, timing: Timing) -> None:
        """A unit of the sample was read, or some of it."""
        known = self._furthest.get(unit)
        if known is None or _reach(timing) > _reach(known.timing):
            self._furthest[unit] = Reading(task, timing)

    def found(self, sample: BenchSample, executor: Executor) -> SampleTotals:
        """What all units hold: of each kind, those that were not read are as those that were, by what the plan says."""
        packing, is_guessed = self._packing(executor)
        readings, seen = list(self._furthest.values()), np.array(list(self._furthest), np.int64)
        shares = np.array([reading.share(packing) for reading in readings])
        text, documents, tokens = (
            np.array([getattr(reading.timing, name) for reading in readings]) / shares
            for name in ("text_bytes", "documents", "tokens")
        )
        unit_bytes = _extended(sample.planned, sample.kinds(), seen, text)
        times = float(unit_bytes.sum() / text.sum())
        return SampleTotals(unit_bytes, float(documents.sum()) * times, float(tokens.sum()) * times, is_guessed)

    def _packing(self, executor: Executor) -> tuple[dict[str, float], bool]:
        """How much compressed files shrink, and whether that is a guess, because none of them could be asked."""
        wanted = [packed for reading in self._furthest.values() if (packed := reading.packed()) is not None]
        told = executor.run(packed_share, wanted[:MAX_FILES])
        known = {outcome.item.file.path: outcome.value for outcome in told if isinstance(outcome, Done)}
        usual = sum(known.values()) / len(known) if known else 1 / EXPECTED_COMPRESSION
        return {each.file.path: usual for each in wanted} | known, bool(wanted) and not known


def _extended(
    planned: npt.NDArray[np.int64], kinds: list[str], seen: npt.NDArray[np.int64], text: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The text of all units, from that of those that were seen. Of a kind of which none was, the plan is believed."""
    unit_bytes, of_kind = planned.astype(np.float64), np.array(kinds)
    for kind in set(of_kind[seen].tolist()):
        these = of_kind[seen] == kind
        unit_bytes[of_kind == kind] *= text[these].sum() / max(planned[seen][these].sum(), 1)
    unit_bytes[seen] = text
    return unit_bytes


def _reach(timing: Timing) -> tuple[bool, int]:
    return timing.stop is None, timing.text_bytes


def _between(read: float, of: float) -> float:
    """The share, which is neither nothing nor more than all."""
    return min(max(read, math.ulp(1.0)) / max(of, 1), 1.0)
