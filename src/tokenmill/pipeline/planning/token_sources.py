"""From the options about sources of tokens, and a sample of them, to what a job has to know of them."""

from __future__ import annotations

from typing import Any

import msgspec

from tokenmill.errors import UsageError
from tokenmill.options import JobOptions
from tokenmill.pipeline.planning.pieces import option_name
from tokenmill.sources.token_source import DOCUMENTS, OVERLAP, STREAM, TO_BE_FOUND, TokenInput
from tokenmill.tokenization.boundary_tokens import boundary_token
from tokenmill.tokenization.spec import TokenizerSpec

# The options that mean nothing without tokens in the sources.
TOKEN_OPTIONS = ("source_tokenizer", "source_bos", "source_eot", "rows")
# What needs text, and what needs its columns, too.
OF_TEXT = ("special", "fim_rate")
OF_COLUMNS = ("template_special", "prefix")
# The digits of the length of a row, and its least tokens.
MAX_DIGITS, MIN_LENGTH = 9, 2


def token_source(options: JobOptions, spec: TokenizerSpec, *, are_files: bool) -> TokenInput | None:
    """Where the tokens of the sources are; None if they hold text. Raises UsageError for contradictions."""
    if options.tokens_column is None and not are_files:
        given = next((name for name in TOKEN_OPTIONS if getattr(options, name) is not None), None)
        if given is not None:
            raise UsageError(f"{option_name(given)} needs --tokens-column", "It is about sources that hold tokens.")
        return None
    for name in (*OF_COLUMNS, *(OF_TEXT if options.source_tokenizer is None else ())):
        if getattr(options, name) is not None:
            what = "files of tokens" if are_files else "--tokens-column"
            raise UsageError(f"{option_name(name)} cannot be used with {what}", "It is about text.")
    rows, row_tokens = _parse_rows(options.rows, are_files=are_files)
    is_stream = rows == OVERLAP or (rows == STREAM and not are_files)
    for name in ("where", "keep", "source_bos", "dedup", "min_tokens", "max_tokens", "deny") if is_stream else ():
        if getattr(options, name) is not None:
            advice = "A row is no document, and a document may have many rows."
            raise UsageError(f"{option_name(name)} cannot be used with --rows {options.rows}", advice)
    begin = None if is_stream else boundary_token(spec, "--source-bos", options.source_bos, TO_BE_FOUND)
    end = boundary_token(spec, "--source-eot", options.source_eot, TO_BE_FOUND)
    return TokenInput(column=options.tokens_column or "", rows=rows, begin=begin, end=end, row_tokens=row_tokens)


def _parse_rows(given: str | None, *, are_files: bool) -> tuple[str, int]:
    """What a row is, and how long it is if `--rows` tells it."""
    rows, colon, length = (given or "").partition(":")
    if given is not None and rows not in (DOCUMENTS, STREAM, OVERLAP):
        raise UsageError(f"--rows is documents, stream or overlap, not {given!r}")
    if not colon:
        return rows, 0
    if not are_files or rows == STREAM:
        raise UsageError(f"--rows {given} has no effect", f"These rows have a length. Use --rows {rows}.")
    if not length.isdecimal() or len(length) > MAX_DIGITS or int(length) < MIN_LENGTH:
        raise UsageError(f"--rows {given} is not a number of tokens", f"Give a whole number: --rows {rows}:2048.")
    return rows, int(length)


def options_of_tokens(tokens: TokenInput | None) -> dict[str, Any]:
    """The options that another store takes from sources of tokens."""
    return {} if tokens is None else {"tokens_column": tokens.column or None}


def with_frame_of(tokens: TokenInput | None, before: TokenInput | None) -> TokenInput | None:
    """What a call says of its sources, with what an earlier call has found where it says nothing."""
    if tokens is None or before is None:
        return tokens
    frame: dict[str, Any] = {
        name: getattr(before, name) for name in ("begin", "end") if getattr(tokens, name) == TO_BE_FOUND
    }
    if "end" in frame:
        frame["end_first"] = before.end_first
    return msgspec.structs.replace(tokens, rows=tokens.rows or before.rows, **frame)
