"""What a person sees while a run goes on: a bar on a terminal or in a notebook, plain lines or nothing elsewhere."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, Self

from tokenmill.humanize import count, duration, escape_control_characters, number, wrap
from tokenmill.system import terminal

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.progress import Progress, Task
    from rich.status import Status

LINE_SECONDS = 10.0
INTERRUPT_COLUMNS = 3


@dataclass(frozen=True, slots=True)
class Step:
    """How far a run is: what this process has done, and who does it, where that changes."""

    text_bytes: int = 0
    tokens: int = 0
    units: int = 0
    deaths: int = 0
    bad: int = 0
    crew: str = ""


class Reporter(Protocol):
    """Told of a run's course."""

    def pending(self, what: str) -> None:
        """Something is being found out, before there is a step with a known end."""
        ...

    def begin(self, title: str, total_bytes: int, done_bytes: int, workers: int) -> None:
        """A long step starts; `done_bytes` of it were done before."""
        ...

    def advance(self, planned_bytes: int, step: Step) -> None:
        """Some more of the planned bytes are done."""
        ...

    def say(self, message: str) -> None:
        """Something a person should know now."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Silent:
    """Shows nothing."""

    def pending(self, what: str) -> None:
        """Nothing to show."""

    def begin(self, title: str, total_bytes: int, done_bytes: int, workers: int) -> None:
        """Nothing to show."""

    def advance(self, planned_bytes: int, step: Step) -> None:
        """Nothing to show."""

    def say(self, message: str) -> None:
        """Nothing to show."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


class Lines(Silent):
    """Plain lines on stderr, one every ten seconds."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def pending(self, what: str) -> None:
        """Print it if the last line is old enough."""
        if time.monotonic() - self._last >= LINE_SECONDS:
            self._last = time.monotonic()
            self.say(what)

    def begin(self, title: str, total_bytes: int, done_bytes: int, workers: int) -> None:
        """Remember the start, to tell rates from it."""
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
        share = (self._before + self._done) / max(self._total, 1)
        crew = f", {step.crew}" if step.crew else ""
        self.say(f"{self._title}: {share:.1%}, {rates(step, elapsed)}, {duration(left)} left{crew}")

    def say(self, message: str) -> None:
        """Print it."""
        terminal.line(message)


class ProgressBar(Silent):
    """A progress bar on stderr."""

    def __init__(self) -> None:
        self._console: Console = terminal.console(err=True)
        self._progress: Progress | None = None
        self._status: Status | None = None

    def pending(self, what: str) -> None:
        """Show it beside a spinner, until there is a bar."""
        from rich.text import Text  # noqa: PLC0415

        line = Text(escape_control_characters(what), no_wrap=True, overflow="ellipsis")
        if self._status is None:
            self._status = self._console.status(line)
            self._status.start()
        self._status.update(line)

    def begin(self, title: str, total_bytes: int, done_bytes: int, workers: int) -> None:
        """Draw the bar."""
        from rich.constrain import Constrain  # noqa: PLC0415
        from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn  # noqa: PLC0415
        from rich.table import Column  # noqa: PLC0415
        from rich.text import Text  # noqa: PLC0415

        class Rates(ProgressColumn):
            """Tokens and bytes a second since this process started, and the time left."""

            max_refresh = 0.5

            def render(self, task: Task) -> Text:
                elapsed = max(task.elapsed or 0, 1e-3)
                done = task.completed - done_bytes
                if not done:
                    return Text(rates(task.fields["step"], elapsed), style="cyan")
                left = duration(((task.total or 0) - task.completed) * elapsed / done)
                return Text(f"{rates(task.fields['step'], elapsed)}  {left} left", style="cyan")

        console = self._console

        class Narrow(Progress):
            """A bar that leaves room for the ^C which a terminal shows; at its edge that would begin another line."""

            def get_renderable(self) -> RenderableType:
                return Constrain(super().get_renderable(), console.width - INTERRUPT_COLUMNS)

        self._clear()
        whole = Column(no_wrap=True)
        self._progress = Narrow(
            TextColumn("{task.description}", table_column=whole, markup=False),
            BarColumn(bar_width=None),
            TextColumn("{task.percentage:3.0f} %", table_column=whole),
            Rates(whole),
            TextColumn("{task.fields[crew]}", table_column=whole),
            console=self._console,
            expand=True,
        )
        self._workers = count(workers, "worker")
        self._task = self._progress.add_task(
            escape_control_characters(title),
            total=max(total_bytes, 1),
            completed=done_bytes,
            step=Step(),
            crew=self._workers,
        )
        self._progress.start()

    def advance(self, planned_bytes: int, step: Step) -> None:
        """Move the bar."""
        from rich.markup import escape  # noqa: PLC0415

        if self._progress is not None:
            trouble = [f"{n} {what}" for n, what in ((step.deaths, "died"), (step.bad, "bad")) if n]
            workers = step.crew or self._workers
            crew = (
                f"{escape(escape_control_characters(workers))} [red]{', '.join(trouble)}[/]"
                if trouble
                else escape(escape_control_characters(workers))
            )
            self._progress.update(self._task, advance=planned_bytes, step=step, crew=crew)

    def say(self, message: str) -> None:
        """Print above the bar."""
        text = wrap(escape_control_characters(message), self._console.width)
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def __exit__(self, *_: object) -> None:
        self._clear()

    def _clear(self) -> None:
        """Let what is drawn stand as it is."""
        if self._progress is not None:
            self._progress.stop()
        if self._status is not None:
            self._status.stop()
            self._status = None


def for_python() -> Reporter:
    """What a Python call shows: a bar in a terminal or notebook, else nothing."""
    return ProgressBar() if sys.stderr.isatty() or "ipykernel" in sys.modules else Silent()


def for_command(quiet: bool) -> Reporter:
    """What a command shows: a bar in a terminal, plain lines elsewhere, nothing if asked to be quiet."""
    if quiet:
        return Silent()
    return ProgressBar() if sys.stderr.isatty() else Lines()


def rates(step: Step, seconds: float) -> str:
    """Tokens and megabytes a second."""
    return f"{number(step.tokens / seconds)} tok/s  {step.text_bytes / seconds / 1e6:.1f} MB/s"
