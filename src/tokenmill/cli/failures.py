"""The end of a command that failed: a message on stderr, a record on stdout with --json, an exit code."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import textwrap
import traceback
from typing import NoReturn

import click

from tokenmill.cli import hints
from tokenmill.errors import INTERRUPTED, TokenmillError, exit_code_of
from tokenmill.executors import terminal
from tokenmill.humanize import escape_control_characters, wrap
from tokenmill.system import limits

STOPPED = "interrupted: committed work is kept; run the same command again to continue"
BUG = "This is a bug in tokenmill. Run the command again with --debug to see where."
CONTINUED = " " * 15


def has_flag(option: str) -> bool:
    """Whether a flag was given. Arguments after -- belong to another program."""
    own = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    return option in own


def end_of_usage(error: click.ClickException) -> NoReturn:
    """End a command whose options are wrong: print click's message, the usage and the command for help."""
    message = hints.with_hint(error).format_message()
    printed = escape_control_characters(message)  # it quotes arguments, which may be file names that a shell expanded
    context = error.ctx if isinstance(error, click.UsageError) else None
    usage: tuple[str, ...] = ()
    if context is not None:
        words = " ".join(context.command.get_usage(context).removeprefix("Usage:").split())
        usage = f"usage        {words}", f"help         {context.command_path} --help"
    terminal.echo("\n".join(_lines(printed, usage)), err=True)
    _print_record("UsageError", message, (), error.exit_code)
    sys.exit(error.exit_code)


def end_of(error: Exception) -> NoReturn:
    """End a command with the message of an error; with --debug, print the traceback, too."""
    explained = limits.reached_by(error) or (error if isinstance(error, TokenmillError) else limits.explained(error))
    if has_flag("--debug"):
        trace = "".join(traceback.format_exception(error))
        terminal.echo(textwrap.indent(trace, "  "), err=True, nl=False)  # so that no line of it looks like the message
    if explained is not None:
        kind, headline, details = type(explained).__name__, explained.headline, explained.details
    else:
        kind, headline, details = type(error).__name__, f"{type(error).__name__}: {error}", (BUG,)
    code = exit_code_of(explained or error)
    terminal.echo("\n".join(_lines(headline, details)), err=True)
    _print_record(kind, headline, details, code)
    sys.exit(code)


def end_by_signal(message: str = STOPPED) -> NoReturn:
    """End an interrupted command at once. It bypasses sys.stdout, which the signal may have interrupted in a write."""
    with contextlib.suppress(OSError):
        os.write(terminal.STDERR, f"\n{message}\n".encode())
        if has_flag("--json"):
            os.write(terminal.STDOUT, _record("Interrupted", message, (), INTERRUPTED) + b"\n")
    os._exit(INTERRUPTED)


def _lines(headline: str, details: tuple[str, ...]) -> list[str]:
    """The lines of a message. After a line end in a name, the text is indented, so that it looks like no message."""
    lines = [f"error: {_continued(headline)}", *(f"  {_continued(detail)}" for detail in details)]
    if not sys.stderr.isatty():
        return lines
    columns = shutil.get_terminal_size().columns
    return [wrap(line, columns) for text in lines for line in text.split("\n")]


def _continued(text: str) -> str:
    return text.replace("\n", f"\n{CONTINUED}")


def _print_record(kind: str, headline: str, details: tuple[str, ...], code: int) -> None:
    if has_flag("--json"):
        click.echo(_record(kind, headline, details, code).decode())


def _record(kind: str, headline: str, details: tuple[str, ...], code: int) -> bytes:
    # A file name may not be UTF-8.
    texts = [text.encode(errors="backslashreplace").decode() for text in (headline, *details)]
    error = {"kind": kind, "headline": texts[0], "details": texts[1:], "exit_code": code}
    import msgspec  # noqa: PLC0415 - loading it takes a fifth of the time of `--version`

    return terminal.escaped_json(msgspec.json.encode({"error": error}).decode()).encode()
