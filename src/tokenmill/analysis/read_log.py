"""What the lines of a run's logs tell, gathered in bounded memory.

Anybody may have written them: lines that are not understood are counted and passed over, and no more is held than there
is room for.
"""

from __future__ import annotations

import re
from array import array
from bisect import insort
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from tokenmill.errors import StoreError
from tokenmill.store.layout import LOG

if TYPE_CHECKING:
    from tokenmill.storage import Folder

MAX_LINE_BYTES = 1 << 20
MAX_LOG_BYTES = 2 << 30
MAX_UNITS = 20_000_000
MAX_WORKERS = 100_000
MAX_SESSIONS = 10_000
NAMED = 20
MAX_WORDS = 500
MAX_COUNT = 1 << 52
"""More than anybody has of anything; it fits into a float."""

LATEST = 4_102_444_800.0
"""The year 2100: no run has been later."""


class _Line(msgspec.Struct):
    """What is read of a line; each kind of event has some of it."""

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


class LoggedFailure(msgspec.Struct, frozen=True):
    """A death, a failure or a notice: when, of which unit, and what is told of it."""

    time: float
    event: str
    unit: int | None
    what: str


@dataclass
class LogFacts:
    """What the lines have told so far."""

    ends: array[float] = field(default_factory=lambda: array("d"))
    seconds: array[float] = field(default_factory=lambda: array("d"))
    tokens: array[float] = field(default_factory=lambda: array("d"))
    text_bytes: array[float] = field(default_factory=lambda: array("d"))
    peaks: array[float] = field(default_factory=lambda: array("d"))
    sessions: list[list[float]] = field(default_factory=list)
    workers: dict[str, tuple[int, int]] = field(default_factory=dict)
    deaths: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    tried_again: set[int] = field(default_factory=set)
    troubles: list[LoggedFailure] = field(default_factory=list)
    strange: int = 0
    is_cut: bool = False
    unread: list[str] = field(default_factory=list)

    def take(self, line: _Line, *, begins: bool) -> bool:
        """Count one line, which may begin a session without saying so; whether it made sense."""
        if not 0 <= line.time < LATEST or min(line.tokens, line.text_bytes, line.peak_bytes) < 0:
            self.strange += 1
            return False
        if begins and line.event == "complete":  # the store is: those who worked on it have logs of their own
            return False
        if begins or (line.event == "start" and len(self.sessions) < MAX_SESSIONS):
            self.sessions.append([line.time, line.time])
        self.sessions[-1][1] = max(self.sessions[-1][1], line.time)
        if line.event == "unit":
            self._unit(line)
        elif line.event in ("death", "failure", "notice"):
            self._trouble(line)
        self._worker(line)
        return True

    def _unit(self, line: _Line) -> None:
        if len(self.ends) >= MAX_UNITS:
            self.is_cut = True
            return
        self.ends.append(line.time)
        self.seconds.append(min(max(line.seconds, 0.0), line.time))
        self.tokens.append(float(min(line.tokens, MAX_COUNT)))
        self.text_bytes.append(float(min(line.text_bytes, MAX_COUNT)))
        self.peaks.append(float(min(line.peak_bytes, MAX_COUNT)))

    def _trouble(self, line: _Line) -> None:
        if line.event == "death":
            _count(self.deaths, line.cause[:40])
        if line.event == "failure":
            _count(self.failures, line.kind[:80])
        if line.event != "notice" and len(self.tried_again) < MAX_WORKERS:
            self.tried_again.add(line.unit)
        # The first by time: ranks have a log each, and all of them begin at the beginning.
        if len(self.troubles) < NAMED or line.time < self.troubles[-1].time:
            insort(self.troubles, _told_of(line), key=lambda trouble: trouble.time)
            del self.troubles[NAMED:]

    def _worker(self, line: _Line) -> None:
        name = f"{line.node[:80]} {line.pid}".strip()
        if line.pid <= 0 or (len(self.workers) >= MAX_WORKERS and name not in self.workers):
            return
        peak, units = self.workers.get(name, (0, 0))
        self.workers[name] = max(peak, min(line.peak_bytes, MAX_COUNT)), units + (line.event == "unit")


def _count(counter: Counter[str], kind: str) -> None:
    counter[kind if kind in counter or len(counter) < NAMED else "other"] += 1


def _told_of(line: _Line) -> LoggedFailure:
    first = f"{line.kind}: {line.message}" if line.event == "failure" else line.how or line.message
    what = first.partition("\n")[0] + (f", on {line.file}" if line.file else "")
    unit = None if line.event == "notice" else min(max(line.unit, 0), MAX_COUNT)
    return LoggedFailure(line.time, line.event, unit, what[:MAX_WORDS])


def gather(folder: Folder) -> LogFacts:
    """What all logs of a run tell; those that are no files, or lead elsewhere, are passed over."""
    told = LogFacts()
    for name in _logs(folder):
        try:
            _take_log(folder, name, told)
        except StoreError as error:
            told.unread.append(f"{name} is passed over: {error.headline}")
    return told


def _take_log(folder: Folder, name: str, told: LogFacts) -> None:
    begun = folder.is_remote and bool(told.sessions)  # there, it is a piece of a log
    for data in _lines(folder, name, told):
        try:
            line = msgspec.json.decode(data, type=_Line)
        except (msgspec.DecodeError, ValueError, RecursionError):  # a ValueError is about bytes that are no UTF-8
            told.strange += 1
            continue
        begun = told.take(line, begins=not begun) or begun


def _logs(folder: Folder) -> list[str]:
    """The logs there are: one for each rank, or pieces in the order of time where that takes a network."""
    stem = LOG.partition(".")[0]
    if folder.is_remote:
        return sorted(f"{stem}/{name}" for name in folder.names(stem) if name.endswith(".jsonl"))
    return sorted(name for name in folder.names(".") if re.fullmatch(rf"{stem}(-[0-9]{{1,9}})?\.jsonl", name))


def _lines(folder: Folder, name: str, told: LogFacts) -> Iterator[bytes]:
    """The lines of a log, none longer than there is room for."""
    rest = b""
    size = folder.size(name)
    told.is_cut |= size > MAX_LOG_BYTES
    for data in folder.chunks(name, 0, min(size, MAX_LOG_BYTES)):
        *whole, rest = (rest + data).split(b"\n")
        yield from (line for line in whole if line.strip())
        if len(rest) > MAX_LINE_BYTES:
            told.strange += 1
            rest = b""
    if rest.strip():
        yield rest
