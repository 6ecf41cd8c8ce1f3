"""Progress of a run: the protocol of its receivers, and those that print plain lines or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from tokenmill.errors import in_python
from tokenmill.executors import terminal
from tokenmill.humanize import duration, number

# Seconds between two plain lines, and between two states of a line in a notebook.
LINE_SECONDS = 10.0
NOTEBOOK_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Step:
    """What this process has done so far; `workers_text` returns the workers as text where their number changes."""

    text_bytes: int = 0
    tokens: int = 0
    units: int = 0
    deaths: int = 0
    bad: int = 0
    workers_text: Callable[[], str] = str


class Reporter(Protocol):
    """Receives the progress of a run."""

    def pending(self, what: str) -> None:
        """Show what goes on before a step with a known size begins."""

    def begin(self, title: str, total_bytes: int, done_bytes: int, workers: int) -> None:
        """Begin a long step, of which `done_bytes` are done already."""

    def advance(self, planned_bytes: int, step: Step) -> None:
        """Add planned bytes to what is done."""

    def say(self, message: str) -> None:
        """Show a message to the user."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Silent:
    """Shows nothing."""

    def pending(self, what: str) -> None:
        """Show nothing."""

    def begin(self, title: str, total_bytes: int, done_bytes: int, workers: int) -> None:
        """Show nothing."""

    def advance(self, planned_bytes: int, step: Step) -> None:
        """Show nothing."""

    def say(self, message: str) -> None:
        """Show nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Lines(Silent):
    """Plain lines on stderr, one every ten seconds."""

    seconds = LINE_SECONDS

    def __init__(self) -> None:
        self._last = time.monotonic()

    def pending(self, what: str) -> None:
        """Print a line if the last one is old enough."""
        if self._is_due():
            self.show(what)

    def begin(self, title: str, total_bytes: int, done_bytes: int, workers: int) -> None:
        """Note the start, for the rates."""
        self._title, self._total, self._before, self._workers = title, total_bytes, done_bytes, workers
        self._done = 0
        self._started = self._last = time.monotonic()

    def advance(self, planned_bytes: int, step: Step) -> None:
        """Print a line if the last one is old enough."""
        self._done += planned_bytes
        if not self._is_due():
            return
        elapsed = self._last - self._started
        left = (self._total - self._before - self._done) * elapsed / max(self._done, 1)
        fraction = (self._before + self._done) / max(self._total, 1)
        texts = [f"{fraction:.1%}", *rates(step, elapsed), *([f"{duration(left)} left"] if left > 0 else [])]
        self.show(f"{self._title}: {', '.join([*texts, *filter(None, [step.workers_text()])])}")

    def _is_due(self) -> bool:
        now = time.monotonic()
        if now - self._last < self.seconds:
            return False
        self._last = now
        return True

    def show(self, progress: str) -> None:
        """Print a line about progress."""
        self.say(progress)

    def say(self, message: str) -> None:
        """Print a line."""
        terminal.line(message)


class NotebookLines(Lines):
    """Lines in the output of a notebook's cell, with parameters for options. A line about progress is replaced."""

    seconds = NOTEBOOK_SECONDS
    _shown = ""

    def show(self, progress: str) -> None:
        """Print a line in place of the last one about progress."""
        self._print(progress, end="")
        self._shown = progress

    def say(self, message: str) -> None:
        """Print a line, and the line about progress again below it."""
        self._print(in_python(message), end="\n")
        if self._shown:
            self.show(self._shown)

    def _print(self, text: str, end: str) -> None:
        terminal.replace_in_cell(text, len(self._shown), end)

    def __exit__(self, *_: object) -> None:
        self._print("", end="\r")


def rates(step: Step, seconds: float) -> list[str]:
    """Tokens and megabytes per second, as far as they are not zero."""
    tokens = [f"{number(step.tokens / seconds)} tok/s"] if step.tokens else []
    megabytes = f"{step.text_bytes / seconds / 1e6:.1f}"
    return tokens + ([f"{megabytes} MB/s"] if float(megabytes) else [])
