"""The command `erase`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options, output, workers
from tokenmill.humanize import count, duration

if TYPE_CHECKING:
    from tokenmill.results import EraseResult

SHOWN = 10


@options.command(
    "Erase documents from a store and its exports.",
    'tokenmill erase tokens --column url --values urls.txt --request 2026-117 --reason "opt-out"',
    "tokenmill erase tokens --column url --hosts hosts.txt",
    "tokenmill erase tokens --rows rows.csv",
    declared=("workers", "memory", "on"),
)
@click.argument("directory", metavar="DIR")
@click.option("--column", metavar="NAME", help="Column to compare: a kept one, or else one of the sources.")
@click.option("--values", metavar="FILE", help="File with a value of the column in each line.")
@click.option("--hosts", metavar="FILE", help="File with a host in each line; subdomains are included.")
@click.option(
    "--rows", metavar="FILE", help="CSV file with the columns source and row, or the store that is the source of DIR."
)
@click.option("--request", metavar="ID", help="Name of the request. Default: from the selector.")
@click.option("--reason", default="", metavar="TEXT", help="Reason, for the records.")
@click.option("--export", multiple=True, metavar="DIR", help="Export unknown to the store; repeatable.")
@click.option(
    "--forget-export", multiple=True, metavar="DIR", help="Export that is gone: only take it off the list; repeatable."
)
@click.option("--dry-run", is_flag=True, help="Find the documents, and change nothing.")
def erase(directory: str, as_json: bool, **arguments: Any) -> int:
    """Replace the tokens of documents by end tokens, in the store DIR and in its exports. No other document moves.

    Run the same command again after an interruption. Until it has finished, other commands refuse the store. The exit
    code is not 0 if an export was not reached.
    """
    result = tokenmill.erase(directory, **arguments, reporter=workers.reporter())
    output.show_groups(result, as_json, _groups, after_progress=True)
    return result.exit_code


def _groups(result: EraseResult) -> Iterable[output.Group]:
    title = "forgotten" if result.forgotten else "would erase" if result.dry_run else "erased"
    yield title, _lines(result)


def _lines(result: EraseResult) -> Iterable[output.Line]:
    yield "store", result.directory
    if result.forgotten:
        yield from (("forgotten", export) for export in result.forgotten)
        return
    yield "request", result.request
    yield "documents", f"{result.documents:,} ({result.tokens:,} tokens) in {count(result.parts, 'part')}"
    if result.quarantined:
        yield "quarantine", count(result.quarantined, "row")
    if result.matched_before:
        yield "before", f"{count(result.matched_before, 'document')} erased by an earlier request"
    for text in result.not_found[:SHOWN]:
        yield "not found", text
    if len(result.not_found) > SHOWN:
        yield "not found", f"and {len(result.not_found) - SHOWN:,} more; --json lists all"
    for directory, shards in result.exports.items():
        yield "export", f"{directory}: {count(shards, 'shard')} with erased documents"
    for directory, problem in result.unreached.items():
        yield "not reached", f"{directory}: {problem}"
    if result.not_compared:
        rows = count(result.not_compared, "row")
        yield "not compared", f"{rows} in quarantine, whose sources are gone; --rows can name them"
    if not result.dry_run:
        yield "note", "copies, backups and earlier versions of objects in a bucket are not changed"
        yield "next run", f"tokenmill prepare --deny {result.directory}"
    yield "took", duration(result.seconds)
