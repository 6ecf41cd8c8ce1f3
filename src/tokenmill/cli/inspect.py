"""The command `inspect`: a store as a whole, one document of it, or its skipped rows."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

import tokenmill
from tokenmill.cli import options, output
from tokenmill.errors import UsageError
from tokenmill.executors import progress_bar, terminal
from tokenmill.humanize import count, escape_control_characters, size

if TYPE_CHECKING:
    from tokenmill.store.part import SkippedRow

TOKEN_STYLES = ("black on #ffd6a5", "black on #caffbf", "black on #9bf6ff", "black on #bdb2ff", "black on #ffadad")
SHOWN_TOKENS = 2000
SHOWN_RANGES = 1000


@click.command(
    cls=options.Command,
    short_help="Show a store, or one of its documents.",
    epilog=options.example("tokenmill inspect tokens --doc 7"),
)
@click.argument("directory", metavar="DIR...", nargs=-1, required=True)
@click.option(
    "--doc", type=int, metavar="N", help="Show document N: its tokens as text, its source and row. -1 is the last."
)
@click.option("--skipped", is_flag=True, help="List the skipped rows, with the reason.")
@options.storage
@options.general
def inspect(directory: tuple[str, ...], doc: int | None, skipped: bool, as_json: bool) -> None:
    """Show the facts of a store, one document token by token, or the skipped rows.

    Documents are numbered through all stores.
    """
    store = tokenmill.open(directory)
    if doc is not None:
        _show_document(store, doc, as_json)
    elif skipped:
        _show_skipped(store, as_json)
    else:
        for one in directory:
            _show_store(tokenmill.open(one), as_json)


def _show_store(store: tokenmill.Store, as_json: bool) -> None:
    run = store.run
    skipped_rows = int(store.manifest["skipped"].to_numpy().sum())
    if as_json:
        facts = {"directory": store.directory, "documents": len(store), "tokens": store.token_count}
        terminal.echo_json(facts | {"dtype": str(store.dtype), "skipped_rows": skipped_rows, "run": run})
        return
    tokenizer = run.job.tokenizer
    text_bytes = int(store.manifest["text_bytes"].to_numpy().sum())
    lines = [
        ("store", store.directory),
        ("documents", f"{len(store):,}"),
        ("tokens", f"{store.token_count:,} ({store.dtype})"),
        ("text", f"{size(text_bytes)}, {text_bytes / max(store.token_count, 1):.2f} bytes per token"),
        ("tokenizer", f"{tokenizer.name}, {tokenizer.vocabulary_size:,} ids, sha256 {tokenizer.sha256[:16]}..."),
        ("bos", output.token_id(run.job.begin)),
        ("eot", output.token_id(run.job.end)),
        ("sources", f"{count(run.sources, 'file')}, {size(run.source_bytes)}"),
        *([("kept", ", ".join(run.job.kept_columns))] if run.job.kept_columns else []),
        ("skipped", count(skipped_rows, "row")),
        *(("erased", f"{count(c.documents, 'document')} (request {c.request})") for c in run.history if c.documents),
        ("made with", ", ".join(f"{name} {version}" for name, version in run.versions.items())),
    ]
    if run.job.limit_units is not None:
        lines.insert(1, ("limited", f"to the first {run.job.limit_units:,} units (--limit-units)"))
    output.print_lines(lines)


def _show_document(store: tokenmill.Store, position: int, as_json: bool) -> None:
    try:
        document = store.document(position)
    except IndexError:
        raise UsageError(
            f"there is no document {position}", f"The store has {count(len(store), 'document')}, numbered from 0."
        ) from None
    token_bytes = store.token_bytes
    tokens = document.tokens.tolist()
    number = position % len(store)
    columns = store.columns(start=number, stop=number + 1).to_pylist() if store.collection.kept_columns else []
    (name, row), line = document.position, store.line(position)
    if as_json:
        text = b"".join(map(token_bytes, tokens)).decode(errors="replace")
        facts = {"document": number, "store": document.store, "source": document.source, name: row}
        facts |= {"line": line} if line else {}
        facts |= {"columns": columns[0]} if columns else {}
        facts |= {"erased": document.erased} if document.erased else {}
        terminal.echo_json(facts | {"tokens": tokens, "text": text})
        return
    lines = [("document", f"{number:,}")]
    lines += [("store", document.store)] if len(store.directories) > 1 else []
    lines += [("source", document.source)]
    lines += [*output.position_lines((name, row), line), ("tokens", f"{len(tokens):,}")]
    lines += [("state", f"erased (request {document.erased})")] if document.erased else []
    output.print_lines([*lines, *output.column_lines(columns[0] if columns else {})])
    _print_tokens(tokens[:SHOWN_TOKENS], token_bytes)
    if len(tokens) > SHOWN_TOKENS:
        terminal.echo(f"... and {len(tokens) - SHOWN_TOKENS:,} more tokens; --json prints all")


def _print_tokens(tokens: list[int], token_bytes: Callable[[int], bytes]) -> None:
    """Print the text with a color for each token, or a line for each token if the terminal has no colors."""
    from rich.text import Text  # noqa: PLC0415 - heavy

    console = progress_bar.console(soft_wrap=not sys.stdout.isatty(), highlight=False)
    texts = [_readable(token_bytes(token)) for token in tokens]
    if not console.color_system:
        lines = (f'{token:>8,}  "{escape_control_characters(text)}"' for token, text in zip(tokens, texts, strict=True))
        terminal.echo("\n" + "\n".join(lines))
        return
    styled = [(text, TOKEN_STYLES[index % len(TOKEN_STYLES)]) for index, text in enumerate(texts)]
    console.print(Text.assemble("\n", *styled))


def _readable(data: bytes) -> str:
    try:
        return terminal.printable(data.decode())
    except UnicodeDecodeError:
        return "".join(f"\\x{byte:02x}" for byte in data)


def _show_skipped(store: tokenmill.Store, as_json: bool) -> None:
    entries = store.skipped()
    shown = list(itertools.islice(entries, None if as_json else SHOWN_RANGES + 1))
    for source, group in itertools.groupby(shown, lambda entry: entry.source):
        _show_skipped_of(store, source, list(group), as_json)
    if len(shown) > SHOWN_RANGES and not as_json:
        terminal.echo("... and more; --json prints all")
    if not shown and not as_json:
        terminal.echo("skipped rows: 0")


def _show_skipped_of(store: tokenmill.Store, source: int, entries: list[SkippedRow], as_json: bool) -> None:
    """Show rows of one source, with the numbers of their lines if it is JSON Lines."""
    import numpy as np  # noqa: PLC0415 - heavy

    from tokenmill.sources import ROW_KINDS, file_at  # noqa: PLC0415 - heavy
    from tokenmill.sources.line_numbers import line_numbers, place  # noqa: PLC0415 - heavy
    from tokenmill.store.part import SPARSE  # noqa: PLC0415 - heavy

    file = file_at(store.sources, source)
    name = "row" if file.kind in ROW_KINDS else "byte"
    lines = line_numbers(file, np.array([entry.first for entry in entries], np.uint64)).tolist()
    for entry, line in zip(entries, lines, strict=True):
        if as_json:
            facts = {"source": file.path, name: entry.first, "last": entry.last, "rows": entry.rows}
            terminal.echo_json(facts | ({"line": line} if line else {}) | {"reason": entry.reason})
            continue
        rows = f"{name}s {entry.first:,} to {entry.last:,}"
        rows = place(file.kind, entry.first, line) if entry.rows == 1 else rows
        rows = f"{entry.rows:,} of the {rows}" if entry.reason in SPARSE else rows
        terminal.echo(escape_control_characters(f"{file.path}  {rows}  {entry.reason}"))
