"""The command `verify`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options, output, workers
from tokenmill.humanize import count, duration

if TYPE_CHECKING:
    from tokenmill.results import VerifyResult


@options.command(
    "Check a store or an export, byte by byte.", "tokenmill verify tokens --sample 0.01", declared=("workers", "on")
)
@click.argument("directory", metavar="DIR...", nargs=-1, required=True)
@click.option(
    "--sample",
    type=click.FloatRange(0, 1),
    default=0.0,
    metavar="F",
    help="Also tokenize this fraction of the documents with the reference engine, and compare the tokens.",
)
@click.option("--all", "every", is_flag=True, help="The same with every document.")
def verify(directory: tuple[str, ...], every: bool, as_json: bool, **arguments: Any) -> None:
    """Check the checksums of a store or an export. With --sample or --all, compare the tokens with the sources.

    DIR is a store or an export. The exports inside a store are checked with it. Several stores are checked one after
    the other. Exit code 3 means that the check found a problem.
    """
    result = tokenmill.verify(directory, all=every, **arguments, reporter=workers.reporter())
    sample = 1.0 if every else arguments["sample"]
    output.show_groups(result, as_json, lambda result: _groups(result, sample), after_progress=True)


def _groups(result: VerifyResult, sample: float) -> Iterable[output.Group]:
    if result.units:
        yield "store", _store(result, sample)
    for name, files in result.exports.items():
        yield f"export {name}", [("checksums", f"{count(files, 'file')}, all correct")]
    yield "result", _result(result)


def _store(result: VerifyResult, sample: float) -> Iterable[output.Line]:
    yield "directory", result.directory
    yield "documents", f"{result.documents:,}"
    yield "tokens", f"{result.tokens:,}"
    yield "checksums", f"{count(result.units, 'part')}, all correct"
    if sample:
        compared = result.documents_compared
        of = f" (sample {sample:g} of {result.documents:,})" if sample < 1 else ""
        yield "compared", f"{compared:,} of {count(compared, 'compared document')} equal the reference{of}"


def _result(result: VerifyResult) -> Iterable[output.Line]:
    yield "verified", "no problem found"
    for notice in result.notices:
        yield "note", notice
    yield "took", duration(result.seconds)
