"""The record of an estimate, which `plan`, `datasets` and the disk check share: a range, from samples of units.

A range is as wide as the samples differ, and wider if they are few. Nothing is uncertain where all text was encoded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.humanize import Readable

# What a document takes in a part beside its tokens: offset, source, row.
ROW_BYTES = 8 + 4 + 8

# What a document takes at most in an export beside its tokens: in the records, and in the index of the format.
EXPORT_ROW_BYTES = 24 + 20

# The time of a run before its first unit starts.
START_SECONDS = 1.5

# The standard errors on either side of a mean that a range has.
STANDARD_ERRORS = 2.0

# The error of a single sample, as a fraction, beside what the samples show. That of several is less by the root of
# their number.
SAMPLE_ERROR = 0.2


class Estimate(Readable, msgspec.Struct, frozen=True):
    """The range in which a figure is expected."""

    low: float
    high: float

    def scaled(self, factor: float) -> Estimate:
        """The range of a figure that is so many times as large."""
        return Estimate(round(self.low * factor), round(self.high * factor))


class Sample(msgspec.Struct, frozen=True):
    """Some documents of a unit.

    Attributes:
        planned_bytes: The bytes of the plan that were read.
        encoded: The fraction of their text that was encoded. Tokens and seconds are scaled to all of it.
        text_bytes: Their text.
        documents: Their number.
        tokens: Their tokens.
        seconds: The time to read them, and to encode them with warm caches.
        cold_seconds: The same with cold caches.
    """

    planned_bytes: float = 0.0
    encoded: float = 0.0
    text_bytes: float = 0.0
    documents: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    cold_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CorpusEstimate:
    """What some units will come to. `seconds` is the time of all workers together."""

    text_bytes: Estimate
    documents: Estimate
    tokens: Estimate
    seconds: Estimate

    @property
    def bytes_per_token(self) -> float:
        """The text bytes of a token."""
        tokens = self.tokens.low + self.tokens.high
        return round((self.text_bytes.low + self.text_bytes.high) / max(tokens, 1), 2)

    def scaled(self, factor: float) -> CorpusEstimate:
        """What so many times as many units will come to."""
        figures = (self.text_bytes, self.documents, self.tokens, self.seconds)
        return CorpusEstimate(*(figure.scaled(factor) for figure in figures))

    def disk_bytes(self, footprints: Iterable[Footprint]) -> Estimate:
        """The size of stores and exports with these tokens and documents."""
        each = list(footprints)
        low = sum(footprint.bytes(self.tokens.low, self.documents.low) for footprint in each)
        return Estimate(low, sum(footprint.bytes(self.tokens.high, self.documents.high) for footprint in each))


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a token and a document take on a disk."""

    token_bytes: int
    document_bytes: int

    @classmethod
    def of_store(cls, dtype: str) -> Footprint:
        """The footprint in a store with tokens of this type."""
        return cls(np.dtype(dtype).itemsize, ROW_BYTES)

    @classmethod
    def of_export(cls, dtype: str, shuffle: int | None) -> Footprint:
        """The footprint in an export while it is written: a shuffle holds everything twice for a while."""
        copies = 1 if shuffle is None else 2
        return cls(copies * np.dtype(dtype).itemsize, copies * EXPORT_ROW_BYTES)

    def bytes(self, tokens: float, documents: float) -> int:
        """The size of so many tokens and documents."""
        return round(tokens * self.token_bytes + documents * self.document_bytes)


def choose_units(planned: npt.NDArray[np.int64], most: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """At most so many units to sample, and the planned bytes that each stands for.

    One lies at a random place in each of as many equal parts of the plan, so that each file counts by its size.
    """
    if len(planned) <= most:
        return np.arange(len(planned)), planned.astype(np.float64)
    ends = np.cumsum(planned)
    distance = float(ends[-1]) / most
    places = (np.arange(most) + np.random.default_rng(0).random(most)) * distance
    units, hits = np.unique(np.searchsorted(ends, places).clip(0, len(planned) - 1), return_counts=True)
    return units, (hits * distance).astype(np.float64)


def make_estimate(samples: Sequence[Sample], weights: Sequence[float], planned_bytes: int) -> CorpusEstimate | None:
    """What so many bytes of the plan come to. `weights` are the planned bytes that each sample stands for.

    None if nothing could be sampled.
    """
    pairs = [(sample, weight) for sample, weight in zip(samples, weights, strict=True) if sample.planned_bytes]
    if not pairs:
        return None
    figures = np.array([msgspec.structs.astuple(sample) for sample, _ in pairs])
    read, encoded = figures[:, 0], figures[:, 1]
    shares = np.array([weight for _, weight in pairs])
    shares /= shares.sum()
    per_byte = figures[:, 2:] / read[:, None]
    mean = shares @ per_byte
    # Samples are compared with their neighbors: that files differ says nothing about the error, as each is sampled.
    steps = np.diff(per_byte, axis=0, append=per_byte[-1:])
    deviation = np.sqrt((steps**2).sum(axis=0) / (2 * max(1, len(pairs) - 1)))
    margin = STANDARD_ERRORS * deviation * np.sqrt((shares**2).sum()) + SAMPLE_ERROR * mean / np.sqrt(len(pairs))
    known = np.array([read.sum(), read.sum(), (read * encoded).sum(), planned_bytes, planned_bytes]) / planned_bytes
    margin *= np.sqrt(1 - known.clip(0, 1))
    low, high = (planned_bytes * (mean - margin)).clip(0).tolist(), (planned_bytes * (mean + margin)).tolist()
    text_bytes, documents, tokens = (Estimate(round(low[figure]), round(high[figure])) for figure in range(3))
    warm, cold = low[3], high[4]
    return CorpusEstimate(text_bytes, documents, tokens, Estimate(min(warm, cold), max(warm, cold)))
