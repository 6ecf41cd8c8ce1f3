"""The command line: results on stdout, progress on stderr, errors in sentences, a traceback only with --debug."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from typing import Any, NoReturn

import click

from tokenmill import __version__, startup
from tokenmill.cli import commands, hints
from tokenmill.errors import INTERRUPTED, TokenmillError
from tokenmill.wording import plain

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = b"\ninterrupted: what is committed stays; run the same command again to go on\n"
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
    startup.skip_pandas()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # whatever a document holds can be shown, in any encoding
            stream.reconfigure(errors="backslashreplace")
    for number in INTERRUPTS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup asks
            signal.signal(number, _interrupt)
    try:
        _run()
    except (click.exceptions.Abort, KeyboardInterrupt):
        _leave()  # sys.exit would end by SIGINT if the signal came inside an exec, as dataclasses have it


def _run() -> None:
    try:
        code = cli.main(standalone_mode=False) or 0
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # all is done and written; native libraries have been seen to abort while they are taken down
    except click.ClickException as error:
        hints.hinted(error).show()
        sys.exit(error.exit_code)
    except click.exceptions.Abort:
        raise
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:  # the border: said in sentences, and whole with --debug
        if "--debug" in sys.argv:
            raise
        _explain(error)


def _explain(error: Exception) -> NoReturn:
    if isinstance(error, TokenmillError):
        click.echo("\n".join(map(plain, f"error: {error}".splitlines())), err=True)
        sys.exit(error.exit_code)
    click.echo(f"error: {type(error).__name__}: {error}", err=True)
    click.echo("  This is a bug in tokenmill. Run the command again with --debug to see where.", err=True)
    sys.exit(1)


def _interrupt(_number: int, _frame: Any) -> None:
    for number in INTERRUPTS:
        signal.signal(number, _leave)  # whoever asks twice does not want to wait
    raise KeyboardInterrupt


def _leave(*_: Any) -> NoReturn:
    with contextlib.suppress(OSError):
        os.write(2, STOPPED)  # a stream may be in the middle of something
    os._exit(INTERRUPTED)
