"""The command line. Results go to stdout, progress and errors to stderr; --debug adds a traceback to an error."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any, NoReturn

import click

from tokenmill import __version__
from tokenmill.cli import (
    bench,
    datasets,
    doctor,
    erase,
    export,
    failures,
    finish,
    formats,
    inspect,
    loader,
    locate,
    mix,
    plan,
    prepare,
    report,
    stats,
    status,
    tokenizers,
    upgrade,
    verify,
)
from tokenmill.errors import is_interrupt
from tokenmill.executors import terminal
from tokenmill.system import startup

INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@click.group(context_settings=CONTEXT)
@click.version_option(__version__, "-V", "--version", package_name="tokenmill")
def cli() -> None:
    """Turn text corpora of any size into the token files that trainers read.

    Exact, fast, and safe to kill at any time: run the same command again, and it does only what is missing.

    \b
    Example:
      tokenmill prepare data/*.parquet --tokenizer gpt2 --out tokens
      tokenmill inspect tokens --doc 0
    """  # noqa: D301 - \b tells click not to join these lines


# In the order of the help.
for command in (
    prepare.prepare,
    plan.plan,
    status.status,
    export.export,
    verify.verify,
    finish.finish,
    erase.erase,
    upgrade.upgrade,
    inspect.inspect,
    locate.locate,
    loader.loader,
    mix.mix,
    stats.stats,
    report.report,
    formats.formats,
    tokenizers.tokenizers,
    datasets.datasets,
    bench.bench,
    doctor.doctor,
):
    cli.add_command(command)


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
