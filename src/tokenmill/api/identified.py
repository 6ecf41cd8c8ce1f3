"""The record that `identify` returns, and how files that are alike become one."""

from __future__ import annotations

import msgspec

from tokenmill.humanize import Readable
from tokenmill.tokenization.round_trip import TokenCheck

STORE, UNKNOWN = "store", "unknown"


class Identified(Readable, msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What some files are that are alike.

    Attributes:
        files: Their paths.
        format: A kind of source, a format of token files, `store`, or `unknown`.
        bytes: Their size.
        looked: The number of files that were looked into.
        dtype: The type of the tokens.
        dtype_evidence: Why it is that type, if the files do not state it.
        tokens: All tokens.
        documents: All documents.
        rows: The rows of files that have columns.
        estimated: Which of these numbers were estimated from the start of the files.
        row_tokens: The length of rows that have one length.
        rows_are: What such rows are: `documents`, `stream` or `overlap`.
        columns: What each column holds.
        column: The column that is probably meant.
        holds: What the files hold: `text`, `messages`, `segments` or `ids`.
        begin: The token that begins documents.
        end: The token that ends documents, or stands between them.
        end_first: Whether the end token stands before each document; None if that is not known.
        names: The spelling of begin and end token.
        tokenizers: The tokenizers that fit, best first, with the shares of documents.
        others: The others that were tried.
        is_sure: Whether only the first tokenizer fits.
        evidence: What is missing to tell those that fit from each other.
        notes: What is remarkable.
        problem: Why the files cannot be read.
        next: The next command.
    """

    files: list[str]
    format: str
    bytes: int
    looked: int = 1
    dtype: str = ""
    dtype_evidence: str = ""
    tokens: int | None = None
    documents: int | None = None
    rows: int | None = None
    estimated: list[str] = []
    row_tokens: int | None = None
    rows_are: str = ""
    columns: dict[str, str] = {}
    column: str = ""
    holds: str = ""
    begin: int | None = None
    end: int | None = None
    end_first: bool | None = None
    names: dict[str, str] = {}
    tokenizers: list[TokenCheck] = []
    others: list[TokenCheck] = []
    is_sure: bool = False
    evidence: list[str] = []
    notes: list[str] = []
    problem: str = ""
    next: str = ""


def merge(found: list[Identified]) -> list[Identified]:
    """Files that are alike as one entry, with the sum of their numbers."""
    merged: list[Identified] = []
    for each in found:
        index = next((index for index, other in enumerate(merged) if _are_alike(each, other)), None)
        if index is None:
            merged.append(each)
        else:
            merged[index] = _joined(merged[index], each)
    return merged


def _are_alike(one: Identified, other: Identified) -> bool:
    """Whether two files differ in nothing but their names, sizes and counts."""
    if one.format in (UNKNOWN, STORE):
        return False
    same = all(
        getattr(one, name) == getattr(other, name)
        for name in ("format", "dtype", "column", "holds", "columns", "row_tokens", "rows_are", "begin", "end")
    )
    names = [{check.tokenizer for check in each.tokenizers} for each in (one, other)]
    is_same_place = one.end_first == other.end_first or None in (one.end_first, other.end_first)
    return same and is_same_place and (names[0] == names[1] or bool(names[0] & names[1]))


def _joined(one: Identified, other: Identified) -> Identified:
    """One entry for two. What one file tells apart holds for both."""
    checks = {check.tokenizer: check for check in other.tokenizers}
    both = [_added(check, checks[check.tokenizer]) for check in one.tokenizers if check.tokenizer in checks]
    clearer = one if len(one.tokenizers) <= len(other.tokenizers) else other
    sums = {
        name: None if None in (values := (getattr(one, name), getattr(other, name))) else sum(values)
        for name in ("tokens", "documents", "rows")
    }
    return msgspec.structs.replace(
        clearer,
        files=[*one.files, *other.files],
        bytes=one.bytes + other.bytes,
        looked=one.looked + other.looked,
        estimated=list(dict.fromkeys([*one.estimated, *other.estimated])),
        end_first=one.end_first if other.end_first is None else other.end_first,
        tokenizers=both,
        is_sure=one.is_sure or other.is_sure,
        notes=[note for note in one.notes if note in other.notes],
        **sums,
    )


def _added(one: TokenCheck, other: TokenCheck) -> TokenCheck:
    """The shares over the documents of both."""
    names = ("documents", "equal", "differs", "not_utf8", "outside")
    return msgspec.structs.replace(one, **{name: getattr(one, name) + getattr(other, name) for name in names})
