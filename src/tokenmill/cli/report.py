"""The command `report`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options, output, stats, workers

if TYPE_CHECKING:
    from tokenmill.results import ReportResult


@options.command(
    "Write an HTML page with charts of a store and its run.",
    "tokenmill report tokens --by language",
    "tokenmill report s3://bucket/run --out run.html",
    "tokenmill report tokens --card tokens --license odc-by",
    declared=("workers", "memory"),
    common=(*options.CARD, *options.STORAGE, *options.GENERAL),
)
@click.argument("directory", metavar="DIR...", nargs=-1, required=True)
@stats.by_column
@click.option("--out", "-o", metavar="FILE", help="File of the page. [default: report.html in the last DIR]")
def report(directory: tuple[str, ...], as_json: bool, **arguments: Any) -> None:
    """Write an HTML page with charts of a store and its run.

    The page is one file without scripts and needs no network. The command reads all parts once. With --by, it also
    reads that column: the kept one (prepare --keep), or that of the sources. Several stores share one page.

    With --card, it also writes a dataset card for the Hub (README.md) and Croissant metadata (croissant.json). Both
    describe the files of the store.
    """
    from tokenmill.analysis import PRELOAD  # noqa: PLC0415 - after click has checked the options

    with workers.start_workers(PRELOAD) as executor:
        result = tokenmill.report(directory, **arguments, reporter=workers.reporter(), executor=executor)
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
