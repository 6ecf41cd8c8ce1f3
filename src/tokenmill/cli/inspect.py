"""The command `inspect`: a store as a whole, one document of it, or its skipped rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

import tokenmill
from tokenmill.cli import options, output
from tokenmill.errors import UsageError
from tokenmill.executors import terminal
from tokenmill.humanize import count, escape_control_characters, size

if TYPE_CHECKING:
    from tokenmill.results import DocumentInfo, SkippedRange, StoreInfo

SHOWN_RANGES = 1000


@options.command("Show a store, or one of its documents.", "tokenmill inspect tokens --doc 7")
@click.argument("directory", metavar="DIR...", nargs=-1, required=True)
@click.option(
    "--doc", type=int, metavar="N", help="Show document N: its tokens as text, its source and row. -1 is the last."
)
@click.option("--skipped", is_flag=True, help="List the skipped rows, with the reason.")
def inspect(directory: tuple[str, ...], doc: int | None, skipped: bool, as_json: bool) -> None:
    """Show the facts of a store, one document token by token, or the skipped rows.

    Documents are numbered through all stores.
    """
    if doc is not None and skipped:
        raise UsageError("--doc is given with --skipped", "Choose one of them.")
    if doc is not None:
        _show_document(directory, doc, as_json)
    elif skipped:
        _show_skipped(directory, as_json)
    else:
        for facts in tokenmill.inspect(directory):
            output.show(facts, as_json, _store_lines)


def _store_lines(facts: StoreInfo) -> Iterable[output.Line]:
    run = facts.run
    tokenizer = run.job.tokenizer
    yield "store", facts.directory
    if run.trial:
        yield "trial", run.trial
    yield "documents", f"{facts.documents:,}"
    yield "tokens", f"{facts.tokens:,} ({facts.dtype})"
    yield from output.trained_lines(facts.trained_tokens, facts.tokens)
    if facts.text_bytes:  # a store of tokens does not know it
        yield "text", f"{size(facts.text_bytes)}, {facts.text_bytes / max(facts.tokens, 1):.2f} bytes per token"
    yield "tokenizer", f"{tokenizer.name}, {tokenizer.vocabulary_size:,} ids, sha256 {tokenizer.sha256[:16]}..."
    yield "bos", output.token_id(run.job.begin)
    yield "eot", output.token_id(run.job.end)
    yield "sources", f"{count(run.sources, 'file')}, {size(run.source_bytes)}"
    if run.job.keep:
        yield "kept", ", ".join(run.job.keep)
    yield "skipped", count(facts.skipped_rows, "row")
    for change in facts.history:
        if change.documents:
            yield "erased", f"{count(change.documents, 'document')} (request {change.request})"
    yield "made with", ", ".join(f"{name} {version}" for name, version in run.versions.items())


def _show_document(directory: tuple[str, ...], doc: int, as_json: bool) -> None:
    from tokenmill.api.inspect import document_info  # noqa: PLC0415 - heavy

    store = tokenmill.open(directory)
    document = document_info(store, doc)
    output.show(document, as_json, lambda document: _document_lines(document, has_several=len(directory) > 1))
    if as_json:
        return
    shown = document.tokens[: output.SHOWN_TOKENS]
    output.print_tokens(document.tokens, [store.token_bytes(token) for token in shown], document.trained)


def _document_lines(document: DocumentInfo, *, has_several: bool) -> Iterable[output.Line]:
    yield "document", f"{document.document:,}"
    if has_several:
        yield "store", document.store
    yield "source", document.source
    yield from output.position_lines(document.position, document.line)
    yield "tokens", f"{len(document.tokens):,}"
    if document.trained is not None:
        trained = sum(end - begin for begin, end in document.trained)
        yield from output.trained_lines(trained, len(document.tokens))
    if document.erased:
        yield "state", f"erased (request {document.erased})"
    yield from output.column_lines(document.columns)


def _show_skipped(directory: tuple[str, ...], as_json: bool) -> None:
    from tokenmill.api.inspect import skipped_ranges  # noqa: PLC0415 - heavy

    shown = list(skipped_ranges(tokenmill.open(directory), None if as_json else SHOWN_RANGES + 1))
    for entry in shown:
        if as_json:
            terminal.echo_json(entry)
        else:
            terminal.echo(escape_control_characters(f"{entry.source}  {_rows(entry)}  {entry.reason}"))
    if len(shown) > SHOWN_RANGES and not as_json:
        terminal.echo("... and more; --json prints all")
    if not shown and not as_json:
        terminal.echo("skipped rows: 0")


def _rows(entry: SkippedRange) -> str:
    """The place of the rows in their source."""
    from tokenmill.sources.line_numbers import place  # noqa: PLC0415 - heavy
    from tokenmill.store.part import SPARSE  # noqa: PLC0415 - heavy

    name, first = entry.position
    rows = f"{name}s {first:,} to {entry.last:,}"
    rows = place(entry.kind, first, entry.line or 0) if entry.rows == 1 else rows
    return f"{entry.rows:,} of the {rows}" if entry.reason in SPARSE else rows
