"""Progress in a Jupyter notebook: one output of the cell, updated in place. It needs no widgets."""

from __future__ import annotations

import importlib
import sys
import time
from typing import Any, Self

from tokenmill.errors import in_python
from tokenmill.executors.progress import Silent, Step
from tokenmill.humanize import count, duration, escape_control_characters, escape_html, number

# Seconds between two updates. Each is a message to the browser with the whole output.
UPDATE_SECONDS = 0.25
# How many lines the output keeps.
MAX_LINES = 200
# Width of the bar in a front end that shows no HTML.
BAR_COLUMNS = 30


def is_notebook() -> bool:
    """Whether this process is a Jupyter kernel. IPython in a terminal is not."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


class NotebookProgress(Silent):
    """Shows the messages of a run, with parameters for options, and below them its current step."""

    def __init__(self) -> None:
        self._display: Any = None  # the handle of the output, once something is shown
        self._lines: list[str] = []
        self._pending = ""
        self._bar: _Bar | None = None
        self._updated = 0.0

    def pending(self, what: str) -> None:
        """Show a line until the next step begins."""
        self._pending = escape_control_characters(what)
        self._update()

    def begin(self, title: str, total_bytes: int, done_bytes: int, workers: int) -> None:
        """Show the bar of a step. The last state of the step before becomes a line."""
        self._end_step()
        if not total_bytes:  # a step with nothing to do leaves no line
            return
        self._bar = _Bar(escape_control_characters(title), total_bytes, done_bytes, count(workers, "worker"))
        self._update(now=True)

    def advance(self, planned_bytes: int, step: Step) -> None:
        """Move the bar."""
        if self._bar is not None:
            self._bar.advance(planned_bytes, step)
            self._update()

    def say(self, message: str) -> None:
        """Add a line above the bar, or below the bar of a step that is done."""
        if self._bar is not None and self._bar.fraction >= 1:
            self._end_step()
        self._lines.append(escape_control_characters(in_python(message)))
        self._update(now=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end_step()
        if self._display is not None:
            self._update(now=True)

    def _end_step(self) -> None:
        if self._bar is not None:
            self._lines.append(self._bar.text(ended=True))
        self._bar, self._pending = None, ""

    def _update(self, *, now: bool = False) -> None:
        if not now and time.monotonic() - self._updated < UPDATE_SECONDS:
            return
        content = {"text/html": self._html(), "text/plain": self._text()}
        if self._display is None:
            shown = importlib.import_module("IPython.display")  # loaded already, because this process is a kernel
            self._display = shown.display(content, raw=True, display_id=True)
        else:
            self._display.update(content, raw=True)
        self._updated = time.monotonic()

    def _shown_lines(self) -> list[str]:
        earlier = len(self._lines) - MAX_LINES
        lines = [f"... {count(earlier, 'earlier line')}", *self._lines[earlier:]] if earlier > 0 else self._lines
        return [*lines, *filter(None, [self._pending])]

    def _html(self) -> str:
        lines = [escape_html(line) for line in self._shown_lines()]
        if self._bar is not None:
            drawn = f'<progress max="1" value="{self._bar.fraction:.4f}"></progress>'
            lines.append(f"{drawn} {escape_html(self._bar.text())}")
        joined = "\n".join(lines)
        return f'<pre style="white-space: pre-wrap">{joined}</pre>'

    def _text(self) -> str:
        lines = self._shown_lines()
        if self._bar is not None:
            lines.append(f"[{'#' * int(self._bar.fraction * BAR_COLUMNS):{BAR_COLUMNS}}] {self._bar.text()}")
        return "\n".join(lines)


class _Bar:
    """The state of a step."""

    def __init__(self, title: str, total_bytes: int, done_bytes: int, workers: str) -> None:
        self._title, self._total, self._before, self._workers = title, total_bytes, done_bytes, workers
        self._done = 0
        self._step = Step()
        self._started = time.monotonic()

    def advance(self, planned_bytes: int, step: Step) -> None:
        """Add planned bytes to what is done."""
        self._done += planned_bytes
        self._step = step

    @property
    def fraction(self) -> float:
        """The fraction of the step that is done."""
        return min((self._before + self._done) / self._total, 1.0)

    def text(self, *, ended: bool = False) -> str:
        """Percentage, rates, the time left or taken, the workers, and the number of deaths and bad documents."""
        step, seconds = self._step, max(time.monotonic() - self._started, 1e-3)
        left = self._total - self._before - self._done
        texts = [self._title, f"{self.fraction:.0%}".replace("%", " %")]
        texts += [f"{number(step.tokens / seconds)} tok/s"] if step.tokens else []
        texts += [f"{step.text_bytes / seconds / 1e6:.1f} MB/s"] if step.text_bytes else []
        if ended or left <= 0:
            texts.append(f"after {duration(seconds)}")
        elif self._done:
            texts.append(f"{duration(left * seconds / self._done)} left")
        texts.append(escape_control_characters(step.workers_text) or self._workers)
        texts += [f"{n:,} {what}" for n, what in ((step.deaths, "died"), (step.bad, "bad")) if n]
        return "  ".join(texts)
