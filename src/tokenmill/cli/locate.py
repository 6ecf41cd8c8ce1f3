"""The command `locate`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options, output
from tokenmill.executors import progress_bar, terminal

if TYPE_CHECKING:
    from tokenmill.results import LocateResult

SHOWN_DOCUMENTS = 20
# The default of --context.
CONTEXT_TOKENS = 40


class DirectoryOrPosition(options.TokenPosition):
    """Another store, or a token. A number is a token: write ./2026 for a store of that name."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return a number as an int, and anything else as it is."""
        digits = str(value).replace(",", "").replace("_", "")
        is_number = digits.removeprefix("-").isdecimal()
        return super().convert(value, param, ctx) if is_number else value


@options.command(
    "Find the document of a token, or the reverse.",
    "tokenmill locate tokens 81234567",
    "tokenmill locate tokens/llmc/fineweb_train_000003.bin 81234567",
    "tokenmill locate tokens --source data/000.parquet --row 1234",
    "tokenmill locate tokens --step 12345 --row 7 --position 1000 --batch-sequences 512",
    record="LocateOptions",
    declared=None,
)
@click.argument("where", metavar="DIR|SHARD", nargs=1)
@click.argument("tokens", metavar="[DIR]... [TOKEN] [TOKEN2]", nargs=-1, type=DirectoryOrPosition())
def locate(where: str, tokens: tuple[Any, ...], as_json: bool, **arguments: Any) -> None:
    """Find the source file, row and text of a token. With --source and --row or --byte, find a document's tokens.

    TOKEN counts from 0 in the whole store, or in the file SHARD of an export, without its header; in a file of text,
    it is a row. In several stores, it
    counts through all of them in the order given. With TOKEN2, the command lists all documents from TOKEN to before
    TOKEN2. With --step, --row and --position, find a token of a batch that `tokenmill.loader` gave to a training with
    the same options.
    """
    stores = [where, *itertools.takewhile(lambda argument: isinstance(argument, str), tokens)]
    positions = tokens[len(stores) - 1 :]
    if len(positions) > 2 or not all(isinstance(position, int) for position in positions):
        raise click.UsageError(f"Got unexpected extra arguments ({' '.join(map(str, positions[1:]))})")
    result = tokenmill.locate(stores, *positions, **arguments)
    if as_json:
        terminal.echo_json(result)
    elif len(result.documents) == 1:
        output.print_lines(_one(result))
        _print_text(result, arguments.get("context", CONTEXT_TOKENS))
    else:
        output.print_lines(_several(result))


def _one(result: LocateResult) -> Iterable[output.Line]:
    document = result.documents[0]
    position = f"{document.document:,}, of {document.document_tokens:,} tokens"
    if result.exports is None:
        yield "token" if document.file_row is None else "row", f"{document.token:,} of {result.place}"
        if document.token != document.store_token or document.store != result.store:
            yield "store", f"token {document.store_token:,} of {document.store}"
        position = f"{document.document:,}, token {document.offset:,} of its {document.document_tokens:,}"
    yield "document", position
    if document.trained is not None and result.exports is None:
        yield "trained", "yes" if document.trained else "no"
    elif result.exports is not None:
        yield from output.trained_lines(document.trained, document.document_tokens)
    yield "source", document.source
    yield from output.position_lines(document.position, document.line)
    yield from output.column_lines(document.columns)
    if document.erased:
        yield "state", f"erased (request {document.erased})"
    if result.exports is None:
        return
    last = document.store_token + document.document_tokens
    yield "store", f"{document.store}, tokens {document.store_token:,} to {last:,}"
    for name, locations in result.exports.items():
        for shard in locations:
            tokens = f"tokens {shard.token:,} to {shard.token + shard.tokens:,}"
            yield (
                name,
                f"{shard.file}, {tokens if shard.file_row is None else f'row {shard.file_row:,}'} ({shard.split})",
            )
        dropped = document.document_tokens - sum(shard.tokens for shard in locations)
        if dropped or not locations:
            yield name, f"{dropped:,} of its tokens are in no shard" + (" (--tail drop)" if dropped else "")
    yield from result.unasked.items()


def _several(result: LocateResult) -> Iterable[output.Line]:
    yield "tokens of" if result.documents[0].file_row is None else "rows of", result.place
    for document in result.documents[:SHOWN_DOCUMENTS]:
        name, number = document.position
        origin = f"{name} {number:,} of {document.source}"
        last = f"to {document.token + (document.tokens if document.file_row is None else 1):,}"
        store = "" if document.store == result.store else f" of {document.store}"
        yield f"{document.token:,}", f"{last}: document {document.document:,}{store}, {origin}"
    hidden = len(result.documents) - SHOWN_DOCUMENTS
    if hidden > 0 or result.more:
        count = f"more than {hidden:,}" if result.more else f"{hidden:,}"
        yield "...", f"and {count} other documents; --json lists up to 1,000"


def _print_text(result: LocateResult, context: int) -> None:
    """Print the text around the tokens. The text of a single token is in reverse, or in brackets without colors."""
    from rich.text import Text  # noqa: PLC0415 - heavy

    document = result.documents[0]
    start = "..." if document.offset > context else ""
    end = "..." if document.offset + document.tokens + context < document.document_tokens else ""
    texts = start + document.around.before, document.around.text, document.around.after + end
    before, text, after = map(terminal.printable, texts)  # rich would drop some characters without a trace
    console = progress_bar.console(soft_wrap=not sys.stdout.isatty(), highlight=False)
    is_marked = result.exports is None
    middle = text if not is_marked else (text, "bold reverse") if console.color_system else f"[[{text}]]"
    console.print(Text.assemble("\n", before, middle, after))
