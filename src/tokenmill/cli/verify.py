"""The command `verify`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options, output, workers
from tokenmill.humanize import count, duration

if TYPE_CHECKING:
    from tokenmill.api.verify import VerifyResult


@click.command(
    cls=options.Command,
    short_help="Check a store or an export, byte by byte.",
    epilog=options.example("tokenmill verify tokens --sample 0.01"),
)
@click.argument("directory", metavar="DIR")
@click.option(
    "--sample",
    type=click.FloatRange(0, 1),
    default=0.0,
    metavar="F",
    help="Also encode this share of the documents again, with the reference engine, and compare.",
)
@click.option("--all", "every", is_flag=True, help="Also encode every document again and compare.")
@options.workers
@options.executor
@options.storage
@options.general
def verify(directory: str, every: bool, as_json: bool, **arguments: Any) -> None:
    """Check a store or an export: every checksum, and with --sample or --all a store's tokens against the sources.

    DIR is a store, which is checked with the exports inside it, or the directory of an export. Exit code 3 means that
    something is wrong.
    """
    result = tokenmill.verify(directory, all=every, **arguments, reporter=workers.reporter())
    output.show(result, as_json, _lines)


def _lines(result: VerifyResult) -> Iterable[output.Line]:
    if result.units:
        yield "store", result.directory
        yield "checksums", f"{count(result.units, 'part')} checked, all as they were written"
        yield "holds", f"{result.documents:,} documents, {result.tokens:,} tokens"
    if compared := result.documents_compared:
        yield "compared", f"{compared:,} of {result.documents:,} documents equal the reference's tokens"
    for name, files in result.exports.items():
        yield "export", f"{name}: {count(files, 'file')} checked, all as they were written"
    for notice in result.notices:
        yield "note", notice
    yield "took", duration(result.seconds)
