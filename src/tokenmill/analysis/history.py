"""The course of a run, read from its logs in bounded memory: speed over time, pauses, memory, deaths.

Logs are untrusted: lines that do not parse are counted and skipped, and every collection has a limit.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import Counter
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.errors import StoreError
from tokenmill.humanize import Readable
from tokenmill.storage import Folder
from tokenmill.store import event_log

MAX_UNITS = 20_000_000
MAX_WORKERS = 100_000
MAX_SESSIONS = 10_000
# Failures, workers, pauses and kinds of failure that are listed by name.
MAX_LISTED = 20
MAX_TEXT_CHARACTERS = 500
# More than any real count, and exact as a float.
MAX_COUNT = 1 << 52
# The year 2100. A later time is an error.
MAX_TIME = 4_102_444_800.0
BINS = 100
# A shorter run has no rates over time.
MIN_SECONDS = 0.001
Numbers = npt.NDArray[np.float64]


class _Line(msgspec.Struct):
    """The keys that are read from a log line. Each kind of event has some of them."""

    time: float
    event: str
    unit: int = 0
    tokens: int = 0
    text_bytes: int = 0
    seconds: float = 0.0
    pid: int = 0
    peak_bytes: int = 0
    node: str = ""
    workers: int = 0
    cause: str = ""
    how: str = ""
    file: str = ""
    attempt: int = 0
    kind: str = ""
    message: str = ""


class LoggedFailure(Readable, msgspec.Struct, frozen=True):
    """A death, a failure or a notice: its time, its unit, and its text."""

    time: float
    event: str
    unit: int | None
    what: str


@dataclass
class LogFacts:
    """What the lines read so far contain. `ends` to `text_bytes` have one entry per unit.

    `is_started` is whether the last session has its event `start`: a run may log notices before it.
    """

    ends: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    tokens: array[float] = field(default_factory=lambda: array("d"))
    text_bytes: array[float] = field(default_factory=lambda: array("d"))
    sessions: list[list[float]] = field(default_factory=list)
    workers: set[str] = field(default_factory=set)
    peak_bytes: int = 0
    deaths: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    retried_units: set[int] = field(default_factory=set)
    troubles: list[LoggedFailure] = field(default_factory=list)
    bad_lines: int = 0
    is_cut: bool = False
    is_started: bool = False
    unreadable: list[str] = field(default_factory=list)

    def add(self, line: _Line, *, begins: bool) -> bool:
        """Count one line, and return whether it was valid. With `begins`, any event begins a session."""
        if not 0 <= line.time < MAX_TIME or min(line.tokens, line.text_bytes, line.peak_bytes) < 0:
            self.bad_lines += 1
            return False
        if begins and line.event == "complete":  # the store was complete: the sessions that worked have other logs
            return False
        is_start = line.event == "start"
        if begins or (is_start and self.is_started and len(self.sessions) < MAX_SESSIONS):
            self.sessions.append([line.time, line.time])
        self.is_started = is_start or (self.is_started and not begins)
        self.sessions[-1][1] = max(self.sessions[-1][1], line.time)
        if line.event == "unit":
            self._add_unit(line)
        elif line.event in ("death", "failure", "notice"):
            self._add_trouble(line)
        self.peak_bytes = max(self.peak_bytes, min(line.peak_bytes, MAX_COUNT))
        if line.pid > 0 and len(self.workers) < MAX_WORKERS:
            self.workers.add(f"{line.node[:80]} {line.pid}".strip())
        return True

    def _add_unit(self, line: _Line) -> None:
        if len(self.ends) >= MAX_UNITS:
            self.is_cut = True
            return
        self.ends.append(line.time)
        self.seconds.append(min(max(line.seconds, 0.0), line.time))
        self.tokens.append(float(min(line.tokens, MAX_COUNT)))
        self.text_bytes.append(float(min(line.text_bytes, MAX_COUNT)))

    def _add_trouble(self, line: _Line) -> None:
        if line.event == "death":
            _count(self.deaths, line.cause[:40])
        if line.event == "failure":
            _count(self.failures, line.kind[:80])
        if line.event != "notice" and len(self.retried_units) < MAX_WORKERS:
            self.retried_units.add(line.unit)
        # Keep the earliest by time, because each rank has a log of its own.
        if len(self.troubles) < MAX_LISTED or line.time < self.troubles[-1].time:
            insort(self.troubles, _logged_failure(line), key=lambda trouble: trouble.time)
            del self.troubles[MAX_LISTED:]


def _count(counter: Counter[str], kind: str) -> None:
    counter[kind if kind in counter or len(counter) < MAX_LISTED else "other"] += 1


def _logged_failure(line: _Line) -> LoggedFailure:
    message = f"{line.kind}: {line.message}" if line.event == "failure" else line.how or line.message
    what = message.partition("\n")[0] + (f", on {line.file}" if line.file else "")
    unit = None if line.event == "notice" else min(max(line.unit, 0), MAX_COUNT)
    return LoggedFailure(line.time, line.event, unit, what[:MAX_TEXT_CHARACTERS])


def read_logs(folder: Folder) -> LogFacts:
    """Read all logs of a run. Logs that are not regular files, or are links, are skipped and listed."""
    facts = LogFacts()
    for name in event_log.names(folder):
        try:
            _read_log(folder, name, facts)
        except StoreError as error:
            facts.unreadable.append(f"{name} is skipped: {error.headline}")
    return facts


def _read_log(folder: Folder, name: str, facts: LogFacts) -> None:
    begun = folder.is_remote and bool(facts.sessions)  # a remote log is split into several files
    facts.is_cut |= folder.size(name) > event_log.MAX_LOG_BYTES
    for data in event_log.lines(folder, name):
        try:
            line = msgspec.json.decode(data, type=_Line)
        except (msgspec.DecodeError, ValueError, RecursionError):  # ValueError: the bytes are not UTF-8
            facts.bad_lines += 1
            continue
        begun = facts.add(line, begins=not begun) or begun


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
        return np.asarray(self._before[index] + elapsed)

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
