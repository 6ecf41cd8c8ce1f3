"""Reads the logs of a run in bounded memory.

Logs are untrusted: lines that do not parse are counted and skipped, and every collection has a limit.
"""

from __future__ import annotations

from array import array
from bisect import insort
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from tokenmill.errors import StoreError
from tokenmill.humanize import Readable
from tokenmill.store import event_log

if TYPE_CHECKING:
    from tokenmill.storage import Folder

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
