"""How a command ends that could not do its work: a message on stderr, a record on stdout with --json, an exit code."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import textwrap
import traceback
from typing import NoReturn

import click
import msgspec

from tokenmill.cli import hints
from tokenmill.errors import INTERRUPTED, TokenmillError, exit_code_of
from tokenmill.humanize import escape_control_characters
from tokenmill.system import limits, terminal

STOPPED = "interrupted: what is committed stays; run the same command again to go on"
BUG = "This is a bug in tokenmill. Run the command again with --debug to see where."
CONTINUED = " " * 15


def is_asked(option: str) -> bool:
    """Whether a flag was given; what follows -- is another program's."""
    own = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    return option in own


def end_of_usage(error: click.ClickException) -> NoReturn:
    """End a command whose options are wrong, with the usage that click prints."""
    page = io.StringIO()
    message = hints.hinted(error).format_message()
    printed = escape_control_characters(message)  # it names arguments, which a shell may have made of file names
    shown = (
        click.UsageError(printed, error.ctx) if isinstance(error, click.UsageError) else click.ClickException(printed)
    )
    shown.show(page)
    terminal.echo(page.getvalue(), err=True, nl=False)
    _print_record("UsageError", message, (), error.exit_code)
    sys.exit(error.exit_code)


def end_of(error: Exception) -> NoReturn:
    """End a command with the message of an error; with --debug also with where it was raised."""
    explained = limits.reached_by(error) or (error if isinstance(error, TokenmillError) else limits.explained(error))
    if is_asked("--debug"):
        trace = "".join(traceback.format_exception(error))
        terminal.echo(textwrap.indent(trace, "  "), err=True, nl=False)  # so that no line of it passes for the message
    if explained is not None:
        kind, headline, details = type(explained).__name__, explained.headline, explained.details
    else:
        kind, headline, details = type(error).__name__, f"{type(error).__name__}: {error}", (BUG,)
    code = exit_code_of(explained or error)
    terminal.echo("\n".join(_lines(headline, details)), err=True)
    _print_record(kind, headline, details, code)
    sys.exit(code)


def end_by_signal(message: str = STOPPED) -> NoReturn:
    """End a command that was interrupted, at once: a stream may be in the middle of something."""
    with contextlib.suppress(OSError):
        os.write(terminal.STDERR, f"\n{message}\n".encode())
        if is_asked("--json"):
            os.write(terminal.STDOUT, _record("Interrupted", message, (), INTERRUPTED) + b"\n")
    os._exit(INTERRUPTED)


def _lines(headline: str, details: tuple[str, ...]) -> list[str]:
    """The lines of a message; a line end in a name begins no line that could pass for another message."""
    return [f"error: {_continued(headline)}", *(f"  {_continued(detail)}" for detail in details)]


def _continued(text: str) -> str:
    return text.replace("\n", f"\n{CONTINUED}")


def _print_record(kind: str, headline: str, details: tuple[str, ...], code: int) -> None:
    if is_asked("--json"):
        click.echo(_record(kind, headline, details, code).decode())


def _record(kind: str, headline: str, details: tuple[str, ...], code: int) -> bytes:
    texts = [text.encode(errors="backslashreplace").decode() for text in (headline, *details)]  # names may be no UTF-8
    error = {"kind": kind, "headline": texts[0], "details": texts[1:], "exit_code": code}
    return terminal.escaped_json(msgspec.json.encode({"error": error}).decode()).encode()
