"""The command that finds the document behind a token, and the tokens of a document."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from tokenmill.cli import options

if TYPE_CHECKING:
    from tokenmill.api.locating import Found, Located

SHOWN_DOCUMENTS = 20


@click.command(
    epilog="\b\nExample:\n"
    "  tokenmill locate tokens 81234567\n"
    "  tokenmill locate tokens/llmc/fineweb_train_000003.bin 81234567\n"
    "  tokenmill locate tokens --source data/000.parquet --row 1234"
)
@click.argument("where", metavar="DIR|SHARD")
@click.argument("token", type=int, required=False, metavar="[TOKEN")
@click.argument("token2", type=int, required=False, metavar="[TOKEN2]]")
@click.option("--source", metavar="FILE", help="Ask the other way: where a document of this file is, ...")
@click.option(
    "--row",
    type=click.IntRange(0),
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
    from tokenmill import api  # noqa: PLC0415
    from tokenmill.cli import show  # noqa: PLC0415

    found = api.locate(**words)
    if as_json:
        show.result(found, as_json, lambda _: ())
    elif len(found.documents) == 1:
        show.result(found, as_json, _one)
        _show_text(found, words["context"])
    else:
        show.result(found, as_json, _several)


def _one(found: Located) -> Iterable[tuple[str, str]]:
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
        if not spots:
            yield name, "not in it: what fills no shard was dropped (--tail drop)"


def _several(found: Located) -> Iterable[tuple[str, str]]:
    yield "tokens of", found.place
    for document in found.documents[:SHOWN_DOCUMENTS]:
        stretch = f"to {document.token + document.tokens:,}"
        origin = f"{' '.join(_row(document))} of {document.source}"
        yield f"{document.token:,}", f"{stretch}: document {document.document:,}, {origin}"
    left = len(found.documents) - SHOWN_DOCUMENTS
    if left > 0 or found.more:
        yield "...", f"{max(left, 0):,}{' or more' if found.more else ''} more documents; --json names up to 1,000"


def _row(document: Found) -> tuple[str, str]:
    return "row" if document.kind in ("parquet", "arrow") else "byte", f"{document.row:,}"


def _show_text(found: Located, context: int) -> None:
    from tokenmill.cli import show  # noqa: PLC0415

    document = found.documents[0]
    start = "..." if document.offset > context else ""
    end = "..." if document.offset + document.tokens + context < document.document_tokens else ""
    before, text, after = start + document.around.before, document.around.text, document.around.after + end
    if found.exports is None:
        show.marked(before, text, after)
    else:
        click.echo(f"\n{before}{text}{after}")
