"""The command `report`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options, output, stats, workers
from tokenmill.errors import UsageError
from tokenmill.executors import terminal

if TYPE_CHECKING:
    from tokenmill.results import ReportResult

STANDARD_OUTPUT = "-"


@click.command(
    cls=options.Command,
    declared=("workers", "memory"),
    short_help="Write an HTML page with charts of a store and its run.",
    epilog=options.example(
        "tokenmill report tokens --by language",
        "tokenmill report s3://bucket/run --out run.html",
        "tokenmill report tokens --card tokens --license odc-by",
    ),
)
@click.argument("directory", metavar="DIR...", nargs=-1, required=True)
@stats.by_column
@click.option(
    "--out", "-o", metavar="FILE", help="File of the page; - prints it. [default: report.html in the last DIR]"
)
@options.card
@options.storage
@options.general
def report(directory: tuple[str, ...], out: str | None, as_json: bool, **arguments: Any) -> None:
    """Write an HTML page with charts of a store and its run.

    The page is one file without scripts and needs no network. The command reads all parts once. With --by, it also
    reads that column: the kept one (prepare --keep), or that of the sources. Several stores share one page.

    With --card, it also writes a dataset card for the Hub (README.md) and Croissant metadata (croissant.json). Both
    describe the files of the store.
    """
    from tokenmill.analysis import PRELOAD  # noqa: PLC0415 - after click has checked the options

    if out == STANDARD_OUTPUT and as_json:
        raise UsageError("--out - cannot be used with --json", "Use one of them.")
    if out == STANDARD_OUTPUT and any(arguments[name] is not None for name in options.CARD_FIELDS):
        raise UsageError("--out - cannot be used with --card", "Use one of them.")
    with workers.start_workers(PRELOAD) as executor:
        arguments |= {"reporter": workers.reporter(), "executor": executor}
        if out == STANDARD_OUTPUT:
            from tokenmill.analysis.html import render  # noqa: PLC0415 - heavy

            counted = {name: value for name, value in arguments.items() if name not in options.CARD_FIELDS}
            terminal.echo(render(tokenmill.stats(directory, **counted)), nl=False)
            return
        result = tokenmill.report(directory, out=out, **arguments)
    if not as_json:
        output.separate_from_progress()
    output.show(result, as_json, _lines)


def _lines(result: ReportResult) -> Iterator[output.Line]:
    yield "report", result.path
    for path in result.card:
        yield "card", path
    if result.to_fill_in:
        yield "to fill in", ", ".join(f"--{name}" for name in result.to_fill_in)
    yield from stats.lines(result.statistics)
