"""The course of a run, computed from its log: speed over time, pauses, memory, deaths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.analysis.read_log import MAX_LISTED, LogFacts, LoggedFailure, read_logs
from tokenmill.humanize import Readable

if TYPE_CHECKING:
    from tokenmill.storage import Folder

BINS = 100
# A shorter run has no rates over time.
MIN_SECONDS = 0.001

Numbers = npt.NDArray[np.float64]


class Pause(Readable, msgspec.Struct, frozen=True):
    """No session ran for `seconds`, after `after_seconds` of working time."""

    after_seconds: float
    seconds: float


class History(Readable, msgspec.Struct, frozen=True):
    """The course of a run. All times but `started` and `ended` are working time, in which at least one session ran.

    Bin i of `tokens_per_second` and `bytes_per_second` covers the i-th interval of `bin_seconds`. `peak_bytes` is the
    peak memory of the largest worker.
    """

    started: float
    ended: float
    sessions: int
    working_seconds: float
    units: int
    tokens: int
    bin_seconds: float
    tokens_per_second: list[float]
    bytes_per_second: list[float]
    peak_bytes: int
    pauses: list[Pause]
    workers: int
    deaths: dict[str, int]
    failures: dict[str, int]
    units_tried_again: int
    troubles: list[LoggedFailure]
    lines_not_understood: int
    is_cut: bool


def read_history(folder: Folder, notices: list[str] | None = None) -> History | None:
    """The course of a run, or None without a log. Names logs that cannot be read in `notices`."""
    facts = read_logs(folder)
    if notices is not None:
        notices += facts.unreadable[:MAX_LISTED]
    return _history(facts) if facts.sessions else None


def _history(facts: LogFacts) -> History:
    intervals = _merge_sessions(facts.sessions)
    clock = _WorkClock(intervals)
    working = clock.seconds if clock.seconds >= MIN_SECONDS else 0.0
    edges = np.linspace(0.0, working, BINS + 1)
    ends = np.frombuffer(facts.ends, np.float64)
    stops = clock.convert(ends)
    starts = np.maximum(np.minimum(clock.convert(ends - np.frombuffer(facts.seconds, np.float64)), stops - 1e-6), 0.0)
    tokens, text_bytes = (np.frombuffer(column, np.float64) for column in (facts.tokens, facts.text_bytes))
    return History(
        started=intervals[0][0],
        ended=intervals[-1][1],
        sessions=len(facts.sessions),
        working_seconds=round(working, 3),
        units=len(ends),
        tokens=int(tokens.sum()),
        bin_seconds=round(working / BINS, 6),
        tokens_per_second=_rates(starts, stops, tokens, edges),
        bytes_per_second=_rates(starts, stops, text_bytes, edges),
        peak_bytes=facts.peak_bytes,
        pauses=clock.pauses()[:MAX_LISTED],
        workers=len(facts.workers),
        deaths=dict(facts.deaths.most_common()),
        failures=dict(facts.failures.most_common()),
        units_tried_again=len(facts.retried_units),
        troubles=sorted(facts.troubles, key=lambda trouble: trouble.time),
        lines_not_understood=facts.bad_lines,
        is_cut=facts.is_cut,
    )


def _merge_sessions(sessions: list[list[float]]) -> list[list[float]]:
    """The intervals in which at least one session ran. Sessions of several ranks overlap."""
    intervals: list[list[float]] = []
    for start, stop in sorted(sessions):
        if intervals and start <= intervals[-1][1]:
            intervals[-1][1] = max(intervals[-1][1], stop)
        else:
            intervals.append([start, stop])
    return intervals


class _WorkClock:
    """Converts times of day to working time, which stands still between the intervals."""

    def __init__(self, intervals: list[list[float]]) -> None:
        self._starts, self._stops = (np.array(times, np.float64) for times in zip(*intervals, strict=True))
        spans = self._stops - self._starts
        self._before = np.cumsum(spans) - spans
        self.seconds = float(spans.sum())

    def convert(self, times: Numbers) -> Numbers:
        """The working time at these times."""
        index = np.maximum(np.searchsorted(self._starts, times, side="right") - 1, 0)
        elapsed = np.clip(times - self._starts[index], 0.0, self._stops[index] - self._starts[index])
        converted: Numbers = self._before[index] + elapsed
        return converted

    def pauses(self) -> list[Pause]:
        """The pauses. One before any working time does not count: that session logged nothing but its start."""
        gaps = self._starts[1:] - self._stops[:-1]
        pairs = zip(self._before[1:].tolist(), gaps.tolist(), strict=True)
        return [Pause(round(after, 3), round(seconds, 3)) for after, seconds in pairs if after > 0]


def _rates(starts: Numbers, stops: Numbers, amounts: Numbers, edges: Numbers) -> list[float]:
    """The amount per second in each bin, if each amount was done evenly from its start to its stop."""
    if edges[-1] <= 0 or not len(starts):
        return []
    spans = np.maximum(stops - starts, 1e-6)
    done = [float((amounts * np.clip((edge - starts) / spans, 0.0, 1.0)).sum()) for edge in edges]
    return [round(value, 1) for value in (np.diff(done) / (edges[1] - edges[0])).tolist()]
