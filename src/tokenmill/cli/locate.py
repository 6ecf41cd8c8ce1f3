"""The command that finds the document behind a token, and the tokens of a document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options

if TYPE_CHECKING:
    from tokenmill.api.locate import LocatedDocument, LocateResult

SHOWN_DOCUMENTS = 20


class TokenPosition(click.ParamType[int]):
    """A number from 0 on, with or without the commas that tokenmill prints."""

    name = "integer"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """The number, or click's own error."""
        if isinstance(value, str):
            value = value.replace(",", "").replace("_", "")
        return int(click.IntRange(0).convert(value, param, ctx))


@click.command(
    cls=options.Command,
    short_help="Find the document behind a token, or the way back.",
    epilog="\b\nExample:\n"
    "  tokenmill locate tokens 81234567\n"
    "  tokenmill locate tokens/llmc/fineweb_train_000003.bin 81234567\n"
    "  tokenmill locate tokens --source data/000.parquet --row 1234",
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
@options.everywhere
def locate(as_json: bool, **words: Any) -> None:
    """Find the source file, the row and the text behind a token of a store or of an exported file; or the way back.

    TOKEN counts from 0 through the whole store, or through the file SHARD of an export, its header left out. With
    TOKEN2, all documents from TOKEN to before TOKEN2 are named.
    """
    from tokenmill.cli import output  # noqa: PLC0415

    found = tokenmill.locate(**words)
    if as_json:
        output.result(found, as_json, lambda _: ())
    elif len(found.documents) == 1:
        output.result(found, as_json, _one)
        _show_text(found, words["context"])
    else:
        output.result(found, as_json, _several)


def _one(found: LocateResult) -> Iterable[tuple[str, str]]:
    document = found.documents[0]
    place = f"{document.document:,}, of {document.document_tokens:,} tokens"
    if found.exports is None:
        yield "token", f"{document.token:,} of {found.place}"
        if document.token != document.store_token:
            yield "in the store", f"token {document.store_token:,} of {found.store}"
        place = f"{document.document:,}, token {document.offset:,} of its {document.document_tokens:,}"
    yield "document", place
    yield "source", document.source
    yield _row(document)
    if found.exports is None:
        return
    last = document.store_token + document.document_tokens
    yield "store", f"{found.store}, tokens {document.store_token:,} to {last:,}"
    for name, spots in found.exports.items():
        for spot in spots:
            yield name, f"{spot.file}, tokens {spot.token:,} to {spot.token + spot.tokens:,} ({spot.split})"
        left_out = document.document_tokens - sum(spot.tokens for spot in spots)
        if left_out or not spots:
            yield name, f"{left_out:,} tokens of it are in no shard" + (" (--tail drop)" if left_out else "")
    yield from found.unasked.items()


def _several(found: LocateResult) -> Iterable[tuple[str, str]]:
    yield "tokens of", found.place
    for document in found.documents[:SHOWN_DOCUMENTS]:
        stretch = f"to {document.token + document.tokens:,}"
        origin = f"{' '.join(_row(document))} of {document.source}"
        yield f"{document.token:,}", f"{stretch}: document {document.document:,}, {origin}"
    left = len(found.documents) - SHOWN_DOCUMENTS
    if left > 0 or found.more:
        count = f"more than {left:,}" if found.more else f"{left:,}"
        yield "...", f"and {count} other documents; --json names up to 1,000"


def _row(document: LocatedDocument) -> tuple[str, str]:
    from tokenmill.cli import output  # noqa: PLC0415

    return output.row(document.kind, document.row)


def _show_text(found: LocateResult, context: int) -> None:
    from tokenmill.cli import output  # noqa: PLC0415

    document = found.documents[0]
    start = "..." if document.offset > context else ""
    end = "..." if document.offset + document.tokens + context < document.document_tokens else ""
    before, text, after = start + document.around.before, document.around.text, document.around.after + end
    output.marked(before, text, after, is_marked=found.exports is None)
