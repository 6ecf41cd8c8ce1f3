"""The command `identify`: what files are, and the command that prepares them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

import tokenmill
from tokenmill.cli import options, output
from tokenmill.executors import terminal
from tokenmill.humanize import count, size

if TYPE_CHECKING:
    from tokenmill.results import Identified, TokenCheck

# The trainers of formats whose name says little.
TRAINERS = {
    "llmc": "llm.c, modded-nanogpt",
    "nanogpt": "tokens and nothing else, as of nanoGPT",
    "olmo": "OLMo, dolma",
    "litdata": "litdata chunks",
    "mds": "MosaicML streaming",
    "datatrove": "datatrove",
    "megatron": "Megatron-LM",
}
SHOWN_COLUMNS, SHOWN_OTHERS = 12, 4


@options.command(
    "Say what files are.",
    "tokenmill identify fineweb_train_*.bin",
    "tokenmill identify s3://bucket/old/ --tokenizer Qwen/Qwen3-8B",
    common=(*options.STORAGE, options.CACHE, *options.GENERAL),
)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option(
    "--tokenizer",
    "-t",
    multiple=True,
    metavar="T",
    help="Try this tokenizer, besides those on this machine. Repeatable.",
)
def identify(files: tuple[str, ...], tokenizer: tuple[str, ...], as_json: bool) -> None:
    """Say what files are: format, tokens, documents, begin and end tokens, and which tokenizer they are of.

    FILE is a file, a directory, a glob or a store. Only the start of a remote file is read. The tokenizer is found by
    decoding documents and encoding their text again.
    """
    found = tokenmill.identify(list(files), tokenizer=list(tokenizer))
    if as_json:
        terminal.echo_json(found)
        return
    for index, each in enumerate(found):
        if index:
            terminal.echo()
        output.print_lines(_lines(each))


def _lines(found: Identified) -> Iterable[output.Line]:
    yield "store" if found.format == "store" else "file", _files(found)
    if found.problem:
        yield "problem", found.problem
        return
    trainers = f" ({TRAINERS[found.format]})" if found.format in TRAINERS else ""
    if found.format != "store":
        yield "format", f"{found.format}{trainers}{f', {found.dtype}' if found.dtype else ''}"
    if found.dtype_evidence:
        yield "", found.dtype_evidence
    if found.rows is not None:
        yield "rows", _number(found, "rows")
    if found.columns:
        yield "columns", _columns(found.columns)
    if found.column:
        yield "column", f"{found.column} ({_held(found)})"
    elif found.holds == "text":
        yield "holds", "text; --separator says what stands between documents"
    elif found.columns:
        yield "column", "no column looks like text, messages or token ids"
    yield from _token_lines(found)
    yield from (("note", note) for note in found.notes)
    if found.next:
        yield "next", found.next


def _files(found: Identified) -> str:
    names = found.files
    if len(names) == 1:
        return f"{names[0]}{f' ({size(found.bytes)})' if found.format != 'store' else ''}"
    looked = f", {found.looked} looked into" if found.looked < len(names) else ""
    return f"{names[0]} to {os.path.basename(names[-1])} ({count(len(names), 'file')}, {size(found.bytes)}{looked})"


def _number(found: Identified, name: str) -> str:
    number = getattr(found, name)
    return f"about {float(f'{number:.2g}'):,.0f}" if name in found.estimated else f"{number:,}"


def _columns(columns: dict[str, str]) -> str:
    shown = [f"{name} ({held})" for name, held in list(columns.items())[:SHOWN_COLUMNS]]
    more = len(columns) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more else "")


def _held(found: Identified) -> str:
    if found.holds != "ids":
        return found.holds
    rows = f" in rows of {found.row_tokens:,}" if found.row_tokens and found.rows_are else ""
    return f"token ids{rows}{', which overlap by one' if found.rows_are == 'overlap' else ''}"


def _token_lines(found: Identified) -> Iterable[output.Line]:
    if found.tokens is not None:
        documents = f" in {_number(found, 'documents')} documents" if found.documents is not None else ""
        rows = f", in rows of {found.row_tokens:,}" if found.row_tokens and found.rows_are and not found.column else ""
        yield "tokens", f"{_number(found, 'tokens')}{documents}{rows}"
    if found.begin is not None:
        yield "begin token", f"{output.token_id(found.begin, found.names.get('begin'))} before each document"
    if found.end is not None:
        places = {True: "before each document", False: "after each document", None: "between documents"}
        yield "end token", f"{output.token_id(found.end, found.names.get('end'))} {places[found.end_first]}"
    if found.holds == "ids":
        yield from _tokenizer_lines(found)


def _tokenizer_lines(found: Identified) -> Iterable[output.Line]:
    if not found.tokenizers:
        yield "tokenizer", "none that was tried: give others with --tokenizer ORG/MODEL"
    label = "tokenizer" if found.is_sure or len(found.tokenizers) == 1 else "tokenizers"
    for check in found.tokenizers:
        yield label, _share(check)
        label = ""
    yield from (("not sure", line) for line in found.evidence)
    tried = [check for check in found.others if check.documents]
    partly = [_short(check) for check in tried if check.equal][:SHOWN_OTHERS]
    if tried:
        yield "", f"({', '.join(partly)})" if partly else f"({len(tried)} others: no document)"


def _share(check: TokenCheck) -> str:
    if not check.documents:
        return check.tokenizer
    return f"{check.tokenizer}: {_counts(check)} documents decode and encode to the same ids"


def _short(check: TokenCheck) -> str:
    return f"{check.tokenizer}: {_counts(check)}"


def _counts(check: TokenCheck) -> str:
    return f"{check.equal:,} of {check.documents:,}"
