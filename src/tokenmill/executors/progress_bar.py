"""Draws the progress bar on a terminal, and chooses how a call or a command shows its progress."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from tokenmill.executors import terminal
from tokenmill.executors.progress import Lines, NotebookLines, Reporter, Silent, Step, rates
from tokenmill.humanize import count, duration, escape_control_characters, wrap

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.progress import Progress, Task
    from rich.segment import Segment
    from rich.status import Status

# Columns that the bar leaves free for the ^C that a terminal shows; at the edge it would begin another line.
INTERRUPT_COLUMNS = 3

# A shorter step is shown without its time.
MIN_SHOWN_SECONDS = 0.05


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

        class Workers(ProgressColumn):
            """The workers, and how many have died and how many rows are bad."""

            def render(self, task: Task) -> Text:
                step: Step = task.fields["step"]
                text = Text(escape_control_characters(step.workers_text() or count(workers, "worker")))
                trouble = [f"{n} {what}" for n, what in ((step.deaths, "died"), (step.bad, "bad")) if n]
                return text.append(f" {', '.join(trouble)}", style="red") if trouble else text

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
            Workers(whole),
            console=self._console,
            expand=True,
        )
        self._task = self._progress.add_task(
            escape_control_characters(title),
            total=max(total_bytes, 1),
            completed=done_bytes,
            step=Step(),
        )
        self._progress.start()

    def advance(self, planned_bytes: int, step: Step) -> None:
        """Move the bar."""
        if self._progress is not None:
            self._progress.update(self._task, advance=planned_bytes, step=step)

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
    """The reporter of a Python call: a bar in a terminal, lines in a notebook, else nothing."""
    if _is_notebook():
        return NotebookLines()
    return ProgressBar() if sys.stderr.isatty() else Silent()


def _is_notebook() -> bool:
    """Whether this process is a Jupyter kernel. IPython in a terminal is not."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None


def for_command(quiet: bool) -> Reporter:
    """The reporter of a command: a bar in a terminal, plain lines elsewhere, nothing if `quiet`."""
    if quiet:
        return Silent()
    return ProgressBar() if sys.stderr.isatty() else Lines()


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
