"""The printer of all commands: aligned lines for people, JSON for tools."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable
from typing import TypeVar

from tokenmill.executors import terminal
from tokenmill.humanize import count, escape_control_characters, wrap

Result = TypeVar("Result")
Line = tuple[str, str]

# The width of a line's name and the space after it.
NAME_COLUMNS = 13
# Lines that users copy. They are not wrapped, so that a copy has no line ends.
COPIED = ("use",)


def show(result: Result, as_json: bool, lines: Callable[[Result], Iterable[Line]]) -> None:
    """Print a result as JSON, or as the lines that `lines` makes of it."""
    if as_json:
        terminal.echo_json(result)
    else:
        print_lines(lines(result))


def print_lines(lines: Iterable[Line]) -> None:
    """Print names and values in two columns, wrapped to the width of the terminal."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for name, value in lines:
        line = f"{name:<{NAME_COLUMNS - 1}} {escape_control_characters(value)}"
        terminal.echo(line if columns is None or name in COPIED else wrap(line, columns))


def position_line(kind: str, row: int) -> Line:
    """Where a document is in a source of this kind: its row, or the byte at which it starts."""
    from tokenmill.pipeline.messages import MEASURES  # noqa: PLC0415 - heavy

    return "row" if kind in MEASURES else "byte", f"{row:,}"


def skipped_lines(rows: int | None, quarantined: int | None) -> Iterable[Line]:
    """The number of skipped rows, if there are any."""
    if rows:
        bad = f", {quarantined:,} of them in quarantine" if quarantined else ""
        yield "skipped", f"{count(rows, 'row')}{bad}"


def token_id(token: int | None) -> str:
    """A begin or end token, which may be absent."""
    return "none" if token is None else str(token)
