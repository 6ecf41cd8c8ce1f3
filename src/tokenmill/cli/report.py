"""The command `report`."""

from __future__ import annotations

from typing import Any

import click

import tokenmill
from tokenmill.cli import options, output, stats, workers
from tokenmill.errors import UsageError
from tokenmill.executors import terminal

STANDARD_OUTPUT = "-"


@click.command(
    cls=options.Command,
    short_help="Write an HTML page with charts of a store and its run.",
    epilog=options.example("tokenmill report tokens --by language", "tokenmill report s3://bucket/run --out run.html"),
)
@click.argument("directory", metavar="DIR...", nargs=-1, required=True)
@stats.by_column
@click.option(
    "--out", "-o", metavar="FILE", help="File of the page; - prints it. [default: report.html in the last DIR]"
)
@options.resources
@options.storage
@options.general
def report(directory: tuple[str, ...], out: str | None, as_json: bool, **arguments: Any) -> None:
    """Write an HTML page with charts of a store and its run.

    The page is one file without scripts and needs no network. The command reads all parts once. With --by, it also
    reads that column: the kept one (prepare --keep), or that of the sources. Several stores share one page.
    """
    from tokenmill.analysis import PRELOAD  # noqa: PLC0415 - after click has checked the options

    if out == STANDARD_OUTPUT and as_json:
        raise UsageError("--out - cannot be used with --json", "Use one of them.")
    with workers.start_workers(PRELOAD) as executor:
        arguments |= {"reporter": workers.reporter(), "executor": executor}
        if out == STANDARD_OUTPUT:
            from tokenmill.analysis.html import render  # noqa: PLC0415 - heavy

            terminal.echo(render(tokenmill.stats(directory, **arguments)), nl=False)
            return
        result = tokenmill.report(directory, out=out, **arguments)
    if not as_json:
        output.separate_from_progress()
    output.show(result, as_json, lambda result: [("report", result.path), *stats.lines(result.statistics)])
