"""Progress display: a bar on a terminal or in a notebook; elsewhere plain lines or nothing."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, Self

from tokenmill.executors import terminal
from tokenmill.humanize import count, duration, escape_control_characters, number, wrap

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.progress import Progress, Task
    from rich.segment import Segment
    from rich.status import Status

# Seconds between two plain lines.
LINE_SECONDS = 10.0

# Columns that the bar leaves free for the ^C that a terminal shows; at the edge it would begin another line.
INTERRUPT_COLUMNS = 3

# A shorter step is shown without its time.
MIN_SHOWN_SECONDS = 0.05


@dataclass(frozen=True, slots=True)
class Step:
    """What this process has done so far; `workers_text` gives the workers where their number changes."""

    text_bytes: int = 0
    tokens: int = 0
    units: int = 0
    deaths: int = 0
    bad: int = 0
    workers_text: str = ""


class Reporter(Protocol):
    """Receives the progress of a run."""

    def pending(self, what: str) -> None:
        """Show what goes on before a step with a known size begins."""
        ...

    def begin(self, title: str, total_bytes: int, done_bytes: int, workers: int) -> None:
        """Begin a long step, of which `done_bytes` are done already."""
        ...

    def advance(self, planned_bytes: int, step: Step) -> None:
        """Add planned bytes to what is done."""
        ...

    def say(self, message: str) -> None:
        """Show a message to the user."""
        ...

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

    def __init__(self) -> None:
        self._last = time.monotonic()

    def pending(self, what: str) -> None:
        """Print a line if the last one is old enough."""
        if time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            self.say(what)

    def begin(self, title: str, total_bytes: int, done_bytes: int, workers: int) -> None:
        """Note the start, for the rates."""
        self._title, self._total, self._before, self._workers = title, total_bytes, done_bytes, workers
        self._done = 0
        self._started = self._last = time.monotonic()

    def advance(self, planned_bytes: int, step: Step) -> None:
        """Print a line if the last one is old enough."""
        self._done += planned_bytes
        now = time.monotonic()
        if now - self._last < LINE_SECONDS:
            return
        self._last = now
        elapsed = now - self._started
        left = (self._total - self._before - self._done) * elapsed / max(self._done, 1)
        fraction = (self._before + self._done) / max(self._total, 1)
        texts = [f"{fraction:.1%}", *rates(step, elapsed), *([f"{duration(left)} left"] if left > 0 else [])]
        self.say(f"{self._title}: {', '.join([*texts, *filter(None, [step.workers_text])])}")

    def say(self, message: str) -> None:
        """Print a line."""
        terminal.line(message)


class ProgressBar(Silent):
    """A progress bar on stderr."""

    def __init__(self) -> None:
        self._console = console(err=True)
        self._progress: Progress | None = None
        self._status: Status | None = None

    def pending(self, what: str) -> None:
        """Show a line beside a spinner, until the bar begins."""
        from rich.text import Text  # noqa: PLC0415

        terminal.clear_status()
        line = Text(escape_control_characters(what), no_wrap=True, overflow="ellipsis")
        if self._status is None:
            self._status = self._console.status(line)
            self._status.start()
        self._status.update(line)

    def begin(self, title: str, total_bytes: int, done_bytes: int, workers: int) -> None:
        """Draw the bar, unless everything is done already."""
        self._clear()
        if done_bytes >= total_bytes:
            return
        from rich.constrain import Constrain  # noqa: PLC0415
        from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn  # noqa: PLC0415
        from rich.table import Column  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        class Rates(ProgressColumn):
            """Tokens and bytes per second since this process started, and the time left."""

            max_refresh = 0.5

            def render(self, task: Task) -> Text:
                elapsed = max(task.elapsed or 0, 1e-3)
                done = task.completed - done_bytes
                texts = rates(task.fields["step"], elapsed)
                if task.finished and elapsed >= MIN_SHOWN_SECONDS:
                    texts.append(f"in {duration(elapsed)}")
                elif done > 0 and not task.finished:
                    texts.append(f"{duration(((task.total or 0) - task.completed) * elapsed / done)} left")
                return Text("  ".join(texts), style="cyan")

        terminal.clear_status()
        console = self._console

        class Narrow(Progress):
            """A bar that leaves some columns free. rich calls get_renderable before Progress.console can be used."""

            def get_renderable(self) -> RenderableType:
                return Constrain(super().get_renderable(), console.width - INTERRUPT_COLUMNS)

        whole = Column(no_wrap=True)
        self._progress = Narrow(
            TextColumn("{task.description}", table_column=whole, markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:3.0f} %", table_column=whole),
            Rates(whole),
            TextColumn("{task.fields[workers]}", table_column=whole),
            console=self._console,
            expand=True,
        )
        self._workers = count(workers, "worker")
        self._task = self._progress.add_task(
            escape_control_characters(title),
            total=max(total_bytes, 1),
            completed=done_bytes,
            step=Step(),
            workers=self._workers,
        )
        self._progress.start()

    def advance(self, planned_bytes: int, step: Step) -> None:
        """Move the bar."""
        from rich.markup import escape  # noqa: PLC0415

        if self._progress is not None:
            trouble = [f"{n} {what}" for n, what in ((step.deaths, "died"), (step.bad, "bad")) if n]
            workers = escape(escape_control_characters(step.workers_text or self._workers))
            if trouble:
                workers += f" [red]{', '.join(trouble)}[/]"
            self._progress.update(self._task, advance=planned_bytes, step=step, workers=workers)

    def say(self, message: str) -> None:
        """Print above the bar, or below it if its step is done."""
        terminal.clear_status()
        if self._progress is not None and self._progress.finished:
            self._clear()
        text = wrap(escape_control_characters(message), self._console.width)
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def __exit__(self, *_: object) -> None:
        self._clear()

    def _clear(self) -> None:
        """Stop drawing; the last state stays on the terminal."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
        if self._status is not None:
            self._status.stop()
            self._status = None


def for_python() -> Reporter:
    """The reporter of a Python call: a bar in a terminal or notebook, else nothing."""
    from tokenmill.executors import notebook  # noqa: PLC0415 - it imports this module

    if notebook.is_notebook():
        return notebook.NotebookProgress()
    return ProgressBar() if sys.stderr.isatty() else Silent()


def for_command(quiet: bool) -> Reporter:
    """The reporter of a command: a bar in a terminal, plain lines elsewhere, nothing if `quiet`."""
    if quiet:
        return Silent()
    return ProgressBar() if sys.stderr.isatty() else Lines()


def rates(step: Step, seconds: float) -> list[str]:
    """Tokens and megabytes per second, as far as they are not zero."""
    tokens = [f"{number(step.tokens / seconds)} tok/s"] if step.tokens else []
    megabytes = f"{step.text_bytes / seconds / 1e6:.1f}"
    return tokens + ([f"{megabytes} MB/s"] if float(megabytes) else [])


def console(*, err: bool = False, **options: Any) -> Console:
    """A console of rich that escapes the control characters of all text printed on it."""
    from rich.console import Console  # noqa: PLC0415 - heavy
    from rich.segment import Segment  # noqa: PLC0415

    class Escaping(Console):
        """Escapes the text of each segment, except rich's own control segments."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(terminal.printable(segment.text), segment.style)

    if not err:
        terminal.clear_status()
    return Escaping(stderr=err, **options)
