"""The command line. Results go to stdout, progress and errors to stderr; --debug adds a traceback to an error."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

import click

from tokenmill import __version__
from tokenmill.cli import failures, hints
from tokenmill.errors import is_interrupt
from tokenmill.executors import terminal
from tokenmill.system import startup

# The commands as help lists them. Each is in the module of its name.
COMMANDS = {
    "Start here": ("prepare", "export", "inspect"),
    "Look": (
        "identify",
        "plan",
        "status",
        "stats",
        "report",
        "locate",
        "formats",
        "tokenizers",
        "template",
        "datasets",
        "bench",
        "doctor",
    ),
    "Train": ("loader", "mix"),
    "Keep": ("verify", "finish", "erase"),
}
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class _Commands(Mapping[str, click.Command]):
    """The commands by name. The module of a command, and what it needs, is imported when the command is looked up."""

    def __getitem__(self, name: str) -> click.Command:
        if name not in list(self):
            raise KeyError(name)
        command: click.Command = getattr(importlib.import_module(f"tokenmill.cli.{name}"), name)
        return command

    def __iter__(self) -> Iterator[str]:
        return (name for names in COMMANDS.values() for name in names)

    def __len__(self) -> int:
        return sum(map(len, COMMANDS.values()))


class GroupedHelp(click.Group):
    """Lists its commands under headings, and knows what people call them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find a command. The error for one of another name tells ours."""
        if args[0] in hints.COMMANDS:
            raise click.UsageError(f"No such command {args[0]!r}. Use `tokenmill {hints.COMMANDS[args[0]]}`.", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands, heading by heading."""
        width = max(map(len, self.commands))
        for heading, names in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(f"{name:<{width}}", self.commands[name].get_short_help_str(90)) for name in names])


@click.group(cls=GroupedHelp, commands=_Commands(), context_settings=CONTEXT, invoke_without_command=True)
@click.version_option(__version__, "-V", "--version", package_name="tokenmill")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Turn text corpora of any size into the token files that trainers read.

    Exact, fast, and safe to kill at any time: run the same command again, and it does only what is missing.

    \b
    Example:
      tokenmill prepare data/*.parquet --tokenizer gpt2 --out tokens
      tokenmill inspect tokens --doc 0
    """  # noqa: D301 - \b tells click not to join these lines
    if ctx.invoked_subcommand is None:
        terminal.echo(ctx.get_help())


def main() -> None:
    """The `tokenmill` command."""
    terminal.open_streams()
    startup.skip_pandas()
    for number in INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, _interrupt)
    try:
        _run()
    except (click.exceptions.Abort, KeyboardInterrupt):
        # sys.exit would end by SIGINT if the signal came during an exec(), which dataclasses use.
        failures.end_by_signal()


def _run() -> None:
    try:
        code = cli.main(standalone_mode=False) or 0
        terminal.clear_status()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # everything is written, and native libraries may abort in their destructors
    except click.ClickException as error:
        failures.end_of_usage(error)
    except click.exceptions.Abort:
        raise
    except Exception as error:  # noqa: BLE001 - the last handler: it prints a message
        if is_interrupt(error):
            failures.end_by_signal()
        failures.end_of(error)


def _interrupt(_number: int, _frame: Any) -> None:
    for number in INTERRUPTS:
        signal.signal(number, _leave)  # a second signal ends the process at once
    raise KeyboardInterrupt


def _leave(*_: Any) -> NoReturn:
    failures.end_by_signal()
