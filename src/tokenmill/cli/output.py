"""The printer of all commands: aligned lines for people, JSON for tools."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeVar

from tokenmill.cli import options
from tokenmill.executors import terminal
from tokenmill.executors.terminal import Styled
from tokenmill.humanize import count, escape_control_characters, wrap

if TYPE_CHECKING:
    from rich.table import Table

    from tokenmill.results import ControlTokens, Estimate

Result = TypeVar("Result")
Line = tuple[str, str]
Group = tuple[str, Iterable[Line]]

# The width of a line's name and the space after it.
NAME_COLUMNS = 13
# The end of a line that continues on the next line, in a shell.
SHELL_BREAK = " \\"
HEADING = {"bold": True}
INDENT = "  "


def show(result: Result, as_json: bool, lines: Callable[[Result], Iterable[Line]]) -> None:
    """Print a result as JSON, or as the lines that `lines` makes of it."""
    if as_json:
        terminal.echo_json(result)
    else:
        print_lines(lines(result))


def show_groups(
    result: Result, as_json: bool, groups: Callable[[Result], Iterable[Group]], *, after_progress: bool = False
) -> None:
    """Print a result as JSON, or as groups of lines; `after_progress` if the command has shown progress before."""
    if as_json:
        terminal.echo_json(result)
        return
    if after_progress:
        separate_from_progress()
    print_groups(groups(result))


def print_groups(groups: Iterable[Group]) -> None:
    """Print groups of lines, each under its heading, with a blank line between two groups."""
    for index, (heading, lines) in enumerate(groups):
        if index:
            terminal.echo()
        terminal.echo(Styled(escape_control_characters(heading), HEADING))
        print_lines(lines, INDENT)


def separate_from_progress() -> None:
    """Print a blank line if the terminal that shows the result has shown progress before."""
    if sys.stdout.isatty() and sys.stderr.isatty() and not options.quiet():
        terminal.echo()


def print_lines(lines: Iterable[Line], indent: str = "") -> None:
    """Print names and values in two columns, wrapped to the width of the terminal."""
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for name, value in lines:
        text = escape_control_characters(value)
        line = f"{indent}{name:<{NAME_COLUMNS - 1}} {text}"
        if columns is None or len(line) <= columns:
            terminal.echo(line)
        elif text.startswith("-"):  # options of a command, which are copied into a shell
            terminal.echo(wrap(line, columns - len(SHELL_BREAK)).replace("\n", f"{SHELL_BREAK}\n"))
        else:
            terminal.echo(wrap(line, columns))


def position_lines(position: tuple[str, int], line: int | None) -> Iterable[Line]:
    """Where a document is in its source: its row, or the byte at which it starts, and its line if it is known."""
    if line is not None:
        yield "line", f"{line:,}"
    yield position[0], f"{position[1]:,}"


def column_lines(columns: Mapping[str, object]) -> Iterable[Line]:
    """The kept columns of a document that have a value."""
    for name, value in columns.items():
        if value is not None:
            yield escape_control_characters(name), str(value).lower() if isinstance(value, bool) else str(value)


def skipped_lines(rows: int | None, quarantined: int | None) -> Iterable[Line]:
    """The number of skipped rows, if there are any."""
    if rows:
        bad = f" ({quarantined:,} in quarantine)" if quarantined else ""
        yield "skipped", f"{count(rows, 'row')}{bad}"


def trained_lines(trained: int | None, tokens: int) -> Iterable[Line]:
    """How many tokens are trained on, if not all are."""
    if trained is not None:
        yield "trained", f"{trained:,} tokens ({trained / max(tokens, 1):.1%})"


def waste_lines(label: str, padding_tokens: int, tokens: int, long_documents: int, long_tokens: int) -> Iterable[Line]:
    """The padding of sequences of whole documents, and what is longer than a sequence."""
    if padding_tokens or long_documents:
        yield label, f"whole documents, {padding_tokens / tokens:.2%} of the positions are padding"
    if long_documents:
        documents = f"{count(long_documents, 'document')} of {count(long_tokens, 'token')}"
        yield "left out", f"{documents}, longer than a sequence"


def control_lines(found: ControlTokens) -> Iterable[Line]:
    """The number of documents that spell a control token, if there are any."""
    if found.documents:
        documents = f"{found.documents:,} of {count(found.searched, 'searched document')}"
        yield "control", f"{documents} spell a control token, such as <|im_start|> or <think>; see --special"


def between(estimate: Estimate, shown: Callable[[float], str]) -> str:
    """A range, with one unit if both ends have the same; one value if both ends are shown in the same way."""
    low, high = shown(estimate.low), shown(estimate.high)
    if low == high:
        return low
    number, _, unit = low.partition(" ")
    return f"{number if high.endswith(f' {unit}') else low} to {high}"


def token_id(token: int | None, spelling: str | None = None) -> str:
    """A bos or eot token, which may be absent, with its spelling if it is known."""
    return "none" if token is None else f"{token} {spelling or ''}".rstrip()


def table(texts: Iterable[str], figures: Iterable[str]) -> Table:
    """A table without lines: columns of text, then columns of figures."""
    from rich.table import Table  # noqa: PLC0415 - heavy

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for heading in texts:
        shown.add_column(heading, no_wrap=True)
    for heading in figures:
        shown.add_column(heading, justify="right", no_wrap=True)
    return shown
