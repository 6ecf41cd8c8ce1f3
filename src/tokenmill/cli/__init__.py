"""The command line: results on stdout, progress on stderr, errors in sentences, a traceback only with --debug."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

import click

from tokenmill import __version__
from tokenmill.cli import commands, failures
from tokenmill.errors import is_interrupt
from tokenmill.system import startup, terminal

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, "-V", "--version", package_name="tokenmill")
def cli() -> None:
    """Turn text corpora of any size into the token files that trainers read.

    Exactly, fast, and in a way that can be killed at any moment: run the same command again, and only what is missing
    is done.

    \b
    Example:
      tokenmill prepare data/*.parquet --tokenizer gpt2 --out tokens
      tokenmill inspect tokens --doc 0
    """  # noqa: D301 - click's mark for lines that are not to be joined


for command in commands.COMMANDS:
    cli.add_command(command)


def main() -> None:
    """The `tokenmill` command."""
    terminal.open_streams()
    startup.skip_pandas()
    for number in INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks
            signal.signal(number, _interrupt)
    try:
        _run()
    except (click.exceptions.Abort, KeyboardInterrupt):
        # sys.exit would end by SIGINT if the signal came inside an exec, as dataclasses have it
        failures.end_by_signal()


def _run() -> None:
    try:
        code = cli.main(standalone_mode=False) or 0
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # all is done and written; native libraries have been seen to abort while they are taken down
    except click.ClickException as error:
        failures.end_of_usage(error)
    except click.exceptions.Abort:
        raise
    except Exception as error:  # noqa: BLE001 - the border: said in sentences, and whole with --debug
        if is_interrupt(error):
            failures.end_by_signal()
        failures.end_of(error)


def _interrupt(_number: int, _frame: Any) -> None:
    for number in INTERRUPTS:
        signal.signal(number, _leave)  # a second signal asks not to wait
    raise KeyboardInterrupt


def _leave(*_: Any) -> NoReturn:
    failures.end_by_signal()
