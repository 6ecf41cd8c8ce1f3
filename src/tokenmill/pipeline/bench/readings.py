"""Extrapolates from the units that were read to the whole sample. A unit read in part counts by the fraction read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from tokenmill.executors.fan_out import ignore, run_all
from tokenmill.executors.retry_policy import DEFAULT_POLICY
from tokenmill.pipeline.bench.compression import CompressedPrefix, compression_ratio
from tokenmill.sources.delimited import EXPECTED_COMPRESSION, codec_of

if TYPE_CHECKING:
    from tokenmill.executors.outcomes import Executor
    from tokenmill.pipeline.bench.sample import BenchSample
    from tokenmill.pipeline.bench.timing import Timing
    from tokenmill.pipeline.unit.plan import UnitTask

MAX_PREFIX_BYTES = 32 << 20
# The number of compressed files whose compression ratio is measured.
MAX_FILES = 16


@dataclass(frozen=True, slots=True)
class Reading:
    """A unit, and what was read of it."""

    task: UnitTask
    timing: Timing

    def prefix(self) -> CompressedPrefix | None:
        """The part of a file to decompress, if the fraction that was read depends on a compression ratio."""
        stop = self.timing.stop
        if stop is None or self.task.rows is not None or not codec_of(self.task.files[stop.file].path):
            return None
        return CompressedPrefix(self.task.files[stop.file], min(stop.byte, MAX_PREFIX_BYTES))

    def fraction(self, ratios: Mapping[str, float]) -> float:
        """The fraction of the unit that was read. `ratios` has the compression ratio of each compressed file."""
        stop, span = self.timing.stop, self.task.file_slice
        if stop is None:
            return 1.0
        if self.task.rows is not None:
            return _fraction(self.timing.rows, self.task.rows)
        file = self.task.files[stop.file]
        if span is not None and not codec_of(file.path):
            return _fraction(stop.byte - span.start, span.stop - span.start)
        before = sum(source.size for source in self.task.files[: stop.file])
        read = min(stop.byte * ratios.get(file.path, 1.0), file.size)
        return _fraction(before + read, sum(source.size for source in self.task.files))


@dataclass(frozen=True, slots=True)
class SampleTotals:
    """What the sample holds: the text bytes of each unit, and all documents and tokens.

    `is_guessed` is set if no compression ratio could be measured.
    """

    unit_bytes: npt.NDArray[np.float64]
    documents: float
    tokens: float
    is_guessed: bool

    @property
    def text_bytes(self) -> float:
        """The text bytes of all units."""
        return float(self.unit_bytes.sum())


@dataclass
class Readings:
    """The longest reading of each unit, by its index in the sample."""

    _longest: dict[int, Reading] = field(default_factory=dict)

    @property
    def text_bytes(self) -> int:
        """The text bytes that were read. Text that was read again counts once."""
        return sum(reading.timing.text_bytes for reading in self._longest.values())

    def add(self, index: int, task: UnitTask, timing: Timing) -> None:
        """Add the reading of a unit of the sample."""
        before = self._longest.get(index)
        if before is None or _length(timing) > _length(before.timing):
            self._longest[index] = Reading(task, timing)

    def totals(self, sample: BenchSample, executor: Executor) -> SampleTotals:
        """Estimate what all units hold. Of each kind, the planned sizes of unread units are scaled as those read."""
        ratios, is_guessed = self._compression_ratios(executor)
        readings, indexes = list(self._longest.values()), np.array(list(self._longest), np.int64)
        fractions = np.array([reading.fraction(ratios) for reading in readings])
        text, documents, tokens = (
            np.array([getattr(reading.timing, name) for reading in readings]) / fractions
            for name in ("text_bytes", "documents", "tokens")
        )
        unit_bytes = _extrapolate(sample.unit_bytes, sample.kinds(), indexes, text)
        factor = float(unit_bytes.sum() / text.sum())
        return SampleTotals(unit_bytes, float(documents.sum()) * factor, float(tokens.sum()) * factor, is_guessed)

    def _compression_ratios(self, executor: Executor) -> tuple[dict[str, float], bool]:
        """The compression ratio of each file, and whether all are guessed because none could be measured."""
        prefixes = [prefix for reading in self._longest.values() if (prefix := reading.prefix()) is not None]
        done = run_all(executor, compression_ratio, prefixes[:MAX_FILES], policy=DEFAULT_POLICY, on_failure=ignore)
        measured = {result.item.file.path: result.value for result in done}
        default = sum(measured.values()) / len(measured) if measured else 1 / EXPECTED_COMPRESSION
        return {prefix.file.path: default for prefix in prefixes} | measured, bool(prefixes) and not measured


def _extrapolate(
    planned: npt.NDArray[np.int64], kinds: list[str], indexes: npt.NDArray[np.int64], text: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """The text bytes of all units from those at `indexes`. Kinds without a reading keep their planned sizes."""
    unit_bytes, of_kind = planned.astype(np.float64), np.array(kinds)
    for kind in set(of_kind[indexes].tolist()):
        same = of_kind[indexes] == kind
        unit_bytes[of_kind == kind] *= text[same].sum() / max(planned[indexes][same].sum(), 1)
    unit_bytes[indexes] = text
    return unit_bytes


def _length(timing: Timing) -> tuple[bool, int]:
    return timing.stop is None, timing.text_bytes


def _fraction(read: float, of: float) -> float:
    """A fraction above 0 and at most 1."""
    return min(max(read, math.ulp(1.0)) / max(of, 1), 1.0)
