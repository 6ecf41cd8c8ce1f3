"""The commands that show what a store holds: a page of pictures, and its essence in the terminal."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options
from tokenmill.errors import UsageError
from tokenmill.system import terminal

if TYPE_CHECKING:
    from tokenmill.analysis.statistics import Statistics
    from tokenmill.api.report import ReportResult

STANDARD_OUTPUT = "-"

_by = click.option(
    "--by",
    multiple=True,
    metavar="COLUMN",
    help="Also count tokens by the values of this column of the sources, such as language. May be given several times.",
)


@click.command(
    cls=options.Command,
    short_help="Count what a store holds: lengths, sources, tokens.",
    epilog="\b\nExample:\n  tokenmill stats tokens --by language",
)
@click.argument("directory", metavar="DIR")
@_by
@options.limits
@options.storage
@options.everywhere
def stats(directory: str, as_json: bool, **words: Any) -> None:
    """Count what a store holds: tokens, lengths, vocabulary, sources, duplicates, and how its run went.

    All parts are read once; with --by, the sources are read again, that column only.
    """
    from tokenmill.cli import report_output  # noqa: PLC0415 - after the options are known to be right

    found: Statistics = _with_workers(lambda **more: tokenmill.stats(directory, **words, **more))
    if as_json:
        report_output.as_json(found)
    else:
        report_output.statistics(found)


@click.command(
    cls=options.Command,
    short_help="Write a page of pictures about a store and its run.",
    epilog="\b\nExample:\n  tokenmill report tokens --by language\n  tokenmill report s3://bucket/run --out run.html",
)
@click.argument("directory", metavar="DIR")
@_by
@click.option("--out", "-o", metavar="FILE", help="Where the page goes; - prints it. [default: DIR/report.html]")
@options.limits
@options.storage
@options.everywhere
def report(directory: str, out: str | None, as_json: bool, **words: Any) -> None:
    """Write a page that shows what a store holds and how its run went, in pictures.

    It is one file of HTML that needs no network and no script, for light and dark screens and for paper. All parts are
    read once; with --by, the sources are read again, that column only.
    """
    from tokenmill.cli import report_output  # noqa: PLC0415

    if out == STANDARD_OUTPUT and as_json:
        raise UsageError("--out - prints the page, and --json something else", "Leave out one of them.")
    if out == STANDARD_OUTPUT:
        from tokenmill.analysis.html import render  # noqa: PLC0415

        found: Statistics = _with_workers(lambda **more: tokenmill.stats(directory, **words, **more))
        terminal.echo(render(found), nl=False)
        return
    done: ReportResult = _with_workers(lambda **more: tokenmill.report(directory, out=out, **words, **more))
    if as_json:
        report_output.as_json(done)
    else:
        report_output.reported(done)


def _with_workers(call: Callable[..., Any]) -> Any:
    """What a call of the library gives; workers load what they need while we do."""
    from tokenmill.analysis import PRELOAD  # noqa: PLC0415
    from tokenmill.executors.local import LocalExecutor  # noqa: PLC0415

    with LocalExecutor(PRELOAD) as executor:
        from tokenmill.executors import progress  # noqa: PLC0415

        return call(reporter=progress.for_command(options.quiet()), executor=executor)
