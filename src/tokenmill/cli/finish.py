"""The command `finish`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options, output, workers
from tokenmill.humanize import count, duration

if TYPE_CHECKING:
    from tokenmill.results import FinishResult


@options.command(
    "Complete a store that has all its parts.",
    "tokenmill finish s3://bucket/run",
    declared=("max_bad", "max_skipped", "workers", "on"),
)
@click.argument("directory", metavar="DIR")
def finish(directory: str, as_json: bool, **arguments: Any) -> None:
    """Complete a store that has all its parts: write its manifest.

    The last rank of a run does this by itself. The command is for a run whose ranks all died before that. Exit code 1
    means that units are missing.
    """
    output.show(tokenmill.finish(directory, **arguments, reporter=workers.reporter()), as_json, _lines)


def _lines(result: FinishResult) -> Iterable[output.Line]:
    yield "store", result.directory
    yield "holds", f"{result.documents:,} documents, {result.tokens:,} tokens in {count(result.units, 'part')}"
    yield from output.skipped_lines(result.skipped_rows, result.quarantined)
    yield "manifest", "written" if result.written_now else "unchanged, it was written already"
    yield "took", duration(result.seconds)
