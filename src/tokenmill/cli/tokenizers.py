"""The command `tokenizers`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

import tokenmill
from tokenmill.cli import options, output
from tokenmill.executors import progress_bar, terminal
from tokenmill.humanize import size

if TYPE_CHECKING:
    from tokenmill.results import TokenizerFamily, TokenizerInfo

SHOWN_TOKENS = 6
MIN_COLUMNS = 40
# A terminal with fewer columns does not show the begin and end tokens.
WIDE_COLUMNS = 100


@options.command(
    "List the known tokenizers, or show one.",
    "tokenmill tokenizers",
    "tokenmill tokenizers Qwen/Qwen3-8B",
    common=options.GENERAL,
)
@click.argument("name", required=False, metavar="[T]")
def tokenizers(name: str | None, as_json: bool) -> None:
    """List the families of tokenizers that were compared with their reference: engine, speed, end and begin token.

    With T, show one tokenizer as `prepare --tokenizer T` would use it, and measure its speed on one core.
    """
    if name is not None:
        output.show(tokenmill.tokenizers(name), as_json, _lines)
        return
    families = tokenmill.tokenizers()
    if as_json:
        terminal.echo_json(families)
        return
    _print_table(families)
    terminal.echo()
    output.print_lines(
        [
            ("speed", "of the engine on one core, as a multiple of the reference's (tiktoken or tokenizers)"),
            ("others", "any tokenizer.json works; the reference encodes it if it is of no known family"),
        ]
    )
    terminal.echo("\n`tokenmill tokenizers Qwen/Qwen3-8B` shows one, measured on this machine.")


def _print_table(families: list[TokenizerFamily]) -> None:
    from rich.table import Table  # noqa: PLC0415 - heavy

    console = progress_bar.console(highlight=False, markup=False)
    console.width = max(console.width, MIN_COLUMNS)
    table = Table(box=None, pad_edge=False, header_style="bold")
    wide = console.width >= WIDE_COLUMNS
    for heading in ("family", "for example", "engine"):
        table.add_column(heading)
    table.add_column("speed", justify="right", no_wrap=True)
    for heading in ("eot", "bos") if wide else ():
        table.add_column(heading, no_wrap=True)
    for each in families:
        tokens = (each.eot, each.bos or "") if wide else ()
        table.add_row(each.family, each.tokenizer, each.engine, f"{each.times_reference:.0f} x", *tokens)
    console.print(table)


def _lines(info: TokenizerInfo) -> Iterable[output.Line]:
    yield "tokenizer", f"{info.tokenizer} ({info.vocabulary_size:,} ids, {info.dtype})"
    if info.commit:
        yield "commit", info.commit
    yield "engine", info.engine
    if info.reason:
        yield "note", info.reason
    yield "reference", info.reference
    names = {number: text for text, number in (info.plain_tokens | info.special_tokens).items()}
    if info.eot is not None:
        yield "eot", output.token_id(info.eot, names.get(info.eot))
    if info.eot_note is not None:
        yield "eot" if info.eot is None else "note", info.eot_note
    if info.bos is not None:
        yield "bos", f"{output.token_id(info.bos, names.get(info.bos))} by its template; --bos adds it"
    yield "special", _shown(info.special_tokens)
    if info.special_tokens:
        yield "", "in a text they stay text (see prepare --special)"
    if info.plain_tokens:
        yield "not special", _shown(info.plain_tokens)
        yield "", "in a text they become their id"
    if info.bytes_per_second is not None:
        yield "speed", f"{size(round(info.bytes_per_second))}/s of text on one core of this machine"


def _shown(tokens: dict[str, int]) -> str:
    spellings = {text: text if text == text.strip() else repr(text) for text in tokens}
    shown = [f"{spellings[text]} {number}" for text, number in list(tokens.items())[:SHOWN_TOKENS]]
    more = len(tokens) - len(shown)
    return (", ".join(shown) or "none") + (f" and {more:,} more" if more else "")
