"""The command `locate`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options, output
from tokenmill.executors import progress, terminal

if TYPE_CHECKING:
    from tokenmill.api.locate import LocateResult

SHOWN_DOCUMENTS = 20


class TokenPosition(click.ParamType[int]):
    """A number from 0 on, with or without the commas that tokenmill prints."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number, or raise click's own error."""
        if isinstance(value, str):
            value = value.replace(",", "").replace("_", "")
        return int(click.IntRange(0).convert(value, param, ctx))


@click.command(
    cls=options.Command,
    short_help="Find the document behind a token, or the way back.",
    epilog=options.example(
        "tokenmill locate tokens 81234567",
        "tokenmill locate tokens/llmc/fineweb_train_000003.bin 81234567",
        "tokenmill locate tokens --source data/000.parquet --row 1234",
    ),
)
@click.argument("where", metavar="DIR|SHARD")
@click.argument("token", type=TokenPosition(), required=False)
@click.argument("token2", type=TokenPosition(), required=False)
@click.option("--source", metavar="FILE", help="Ask the other way: where a document of this file is, ...")
@click.option(
    "--row",
    type=TokenPosition(),
    metavar="N",
    help="... which is this row of it. In text and JSON Lines: the byte that it starts at.",
)
@click.option("--store", metavar="DIR", help="The store that SHARD was exported from, if it is not in it.")
@click.option(
    "--context",
    type=click.IntRange(0),
    default=40,
    show_default=True,
    metavar="N",
    help="Show so many tokens before and after.",
)
@options.storage
@options.general
def locate(as_json: bool, **arguments: Any) -> None:
    """Find the source file, the row and the text behind a token of a store or of an exported file; or the way back.

    TOKEN counts from 0 through the whole store, or through the file SHARD of an export, its header left out. With
    TOKEN2, all documents from TOKEN to before TOKEN2 are named.
    """
    result = tokenmill.locate(**arguments)
    if as_json:
        terminal.echo_json(result)
    elif len(result.documents) == 1:
        output.print_lines(_one(result))
        _print_text(result, arguments["context"])
    else:
        output.print_lines(_several(result))


def _one(result: LocateResult) -> Iterable[output.Line]:
    document = result.documents[0]
    position = f"{document.document:,}, of {document.document_tokens:,} tokens"
    if result.exports is None:
        yield "token", f"{document.token:,} of {result.place}"
        if document.token != document.store_token:
            yield "in the store", f"token {document.store_token:,} of {result.store}"
        position = f"{document.document:,}, token {document.offset:,} of its {document.document_tokens:,}"
    yield "document", position
    yield "source", document.source
    yield output.position_line(document.kind, document.row)
    if result.exports is None:
        return
    last = document.store_token + document.document_tokens
    yield "store", f"{result.store}, tokens {document.store_token:,} to {last:,}"
    for name, locations in result.exports.items():
        for shard in locations:
            yield name, f"{shard.file}, tokens {shard.token:,} to {shard.token + shard.tokens:,} ({shard.split})"
        dropped = document.document_tokens - sum(shard.tokens for shard in locations)
        if dropped or not locations:
            yield name, f"{dropped:,} tokens of it are in no shard" + (" (--tail drop)" if dropped else "")
    yield from result.unasked.items()


def _several(result: LocateResult) -> Iterable[output.Line]:
    yield "tokens of", result.place
    for document in result.documents[:SHOWN_DOCUMENTS]:
        origin = f"{' '.join(output.position_line(document.kind, document.row))} of {document.source}"
        last = f"to {document.token + document.tokens:,}"
        yield f"{document.token:,}", f"{last}: document {document.document:,}, {origin}"
    hidden = len(result.documents) - SHOWN_DOCUMENTS
    if hidden > 0 or result.more:
        count = f"more than {hidden:,}" if result.more else f"{hidden:,}"
        yield "...", f"and {count} other documents; --json names up to 1,000"


def _print_text(result: LocateResult, context: int) -> None:
    """Print the text around the tokens. The text of a single token is in reverse, or in brackets without colors."""
    from rich.text import Text  # noqa: PLC0415 - heavy

    document = result.documents[0]
    start = "..." if document.offset > context else ""
    end = "..." if document.offset + document.tokens + context < document.document_tokens else ""
    texts = start + document.around.before, document.around.text, document.around.after + end
    before, text, after = map(terminal.printable, texts)  # rich would drop some characters without a trace
    console = progress.console(soft_wrap=True, highlight=False)
    is_marked = result.exports is None
    middle = text if not is_marked else (text, "bold reverse") if console.color_system else f"[[{text}]]"
    console.print(Text.assemble("\n", before, middle, after))
