"""The course of a run, told from its log: how fast it went, when it stood still, what its workers held, who died."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.analysis.read_log import NAMED, LogFacts, LoggedFailure, gather

if TYPE_CHECKING:
    from tokenmill.storage import Folder

BINS = 100
MIN_SECONDS = 0.001
"""What is shorter has no course."""

Numbers = npt.NDArray[np.float64]


class WorkerMemory(msgspec.Struct, frozen=True):
    """The most that a worker held, and how many units it did."""

    worker: str
    peak_bytes: int
    units: int


class Pause(msgspec.Struct, frozen=True):
    """Nobody was at work for `seconds`, after so many seconds of work."""

    after_seconds: float
    seconds: float


class History(msgspec.Struct, frozen=True):
    """The course of a run. Seconds are those in which somebody was at work.

    Bin i of `tokens_per_second` and `bytes_per_second` is the i-th stretch of `bin_seconds`; `peak_bytes` is the most
    that a worker had held by the end of it.
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
    peak_bytes: list[int]
    pauses: list[Pause]
    workers: int
    memory: list[WorkerMemory]
    deaths: dict[str, int]
    failures: dict[str, int]
    units_tried_again: int
    troubles: list[LoggedFailure]
    lines_not_understood: int
    is_cut: bool


def read_history(folder: Folder, notices: list[str] | None = None) -> History | None:
    """The course of a run, if there is a log that tells of it. Logs that cannot be read are told in `notices`."""
    told = gather(folder)
    if notices is not None:
        notices += told.unread[:NAMED]
    return _history(told) if told.sessions else None


def _history(told: LogFacts) -> History:
    shifts = _at_work(told.sessions)
    clock = _LogClock(shifts)
    working = clock.seconds if clock.seconds >= MIN_SECONDS else 0.0
    edges = np.linspace(0.0, working, BINS + 1)
    ends = np.frombuffer(told.ends, np.float64)
    stops = clock.at(ends)
    starts = np.maximum(np.minimum(clock.at(ends - np.frombuffer(told.seconds, np.float64)), stops - 1e-6), 0.0)
    width = working / BINS if working else 0.0
    tokens, text_bytes = (np.frombuffer(each, np.float64) for each in (told.tokens, told.text_bytes))
    ranked = sorted(told.workers.items(), key=lambda item: (-item[1][0], item[0]))
    return History(
        started=shifts[0][0],
        ended=shifts[-1][1],
        sessions=len(told.sessions),
        working_seconds=round(working, 3),
        units=len(ends),
        tokens=int(tokens.sum()),
        bin_seconds=round(width, 6),
        tokens_per_second=_rates(starts, stops, tokens, edges),
        bytes_per_second=_rates(starts, stops, text_bytes, edges),
        peak_bytes=_peaks(stops, np.frombuffer(told.peaks, np.float64), edges),
        pauses=clock.pauses()[:NAMED],
        workers=len(ranked),
        memory=[WorkerMemory(name, peak, units) for name, (peak, units) in ranked[:NAMED]],
        deaths=dict(told.deaths.most_common()),
        failures=dict(told.failures.most_common()),
        units_tried_again=len(told.tried_again),
        troubles=sorted(told.troubles, key=lambda trouble: trouble.time),
        lines_not_understood=told.strange,
        is_cut=told.is_cut,
    )


def _at_work(sessions: list[list[float]]) -> list[list[float]]:
    """When somebody was at work: sessions of several ranks overlap."""
    shifts: list[list[float]] = []
    for start, stop in sorted(sessions):
        if shifts and start <= shifts[-1][1]:
            shifts[-1][1] = max(shifts[-1][1], stop)
        else:
            shifts.append([start, stop])
    return shifts


class _LogClock:
    """Runs only while somebody is at work."""

    def __init__(self, shifts: list[list[float]]) -> None:
        self._starts, self._stops = (np.array(each, np.float64) for each in zip(*shifts, strict=True))
        spans = self._stops - self._starts
        self._before = np.cumsum(spans) - spans
        self.seconds = float(spans.sum())

    def at(self, times: Numbers) -> Numbers:
        """What it shows at these times."""
        place = np.maximum(np.searchsorted(self._starts, times, side="right") - 1, 0)
        gone = np.clip(times - self._starts[place], 0.0, self._stops[place] - self._starts[place])
        shown: Numbers = self._before[place] + gone
        return shown

    def pauses(self) -> list[Pause]:
        """When it stood still, and for how long; a session that told of nothing but its start did not count."""
        stood = self._starts[1:] - self._stops[:-1]
        found = zip(self._before[1:].tolist(), stood.tolist(), strict=True)
        return [Pause(round(after, 3), round(seconds, 3)) for after, seconds in found if after > 0]


def _rates(starts: Numbers, stops: Numbers, amounts: Numbers, edges: Numbers) -> list[float]:
    """How much was done a second in each bin, if each amount was done evenly from its start to its stop."""
    if edges[-1] <= 0 or not len(starts):
        return []
    spans = np.maximum(stops - starts, 1e-6)
    done = [float((amounts * np.clip((edge - starts) / spans, 0.0, 1.0)).sum()) for edge in edges]
    return [round(value, 1) for value in (np.diff(done) / (edges[1] - edges[0])).tolist()]


def _peaks(stops: Numbers, peaks: Numbers, edges: Numbers) -> list[int]:
    """The most that a worker had held by the end of each bin."""
    if edges[-1] <= 0 or not len(stops):
        return []
    most = np.zeros(len(edges) - 1)
    places = np.clip(np.searchsorted(edges, stops, side="left") - 1, 0, len(most) - 1)
    np.maximum.at(most, places, peaks)
    return [int(value) for value in np.maximum.accumulate(most)]
