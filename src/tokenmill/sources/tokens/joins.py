"""Documents that are cut by files of tokens without an index: which tokens of a file continue the file before.

Files are joined if they are in one directory and one split, and have the same name with numbers that follow each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.humanize import count
from tokenmill.sources.discovery import files_between, splits_of
from tokenmill.sources.documents import WHOLE, SourceFile
from tokenmill.sources.token_source import TokenInput
from tokenmill.sources.tokens.opened import open_source

# What is read at first to find the first end token of a file.
FIRST_TOKENS = 1 << 13
MAX_TOKENS = 1 << 20
# How many documents notes name that may be cut off.
MAX_NOTES = 3


@dataclass(frozen=True, slots=True)
class FileEdges:
    """The first end token of a file, and whether its first and its last token are one. None without any."""

    first: int | None
    begins: bool
    ends: bool
    tokens: int


def find_edges(file: SourceFile, source: TokenInput) -> FileEdges:
    """Look for end tokens at the start and at the end of a file."""
    tokens = open_source(file, source)
    position, step = 0, FIRST_TOKENS
    first: int | None = None
    while position < tokens.tokens and first is None:
        chunk = tokens.read(position, min(position + step, tokens.tokens))
        matches = np.flatnonzero(chunk == source.end)
        first = position + int(matches[0]) if len(matches) else None
        position, step = position + len(chunk), min(2 * step, MAX_TOKENS)
    last = tokens.read(max(tokens.tokens - 1, 0), tokens.tokens)
    return FileEdges(first, first == 0, bool((last == source.end).any()), tokens.tokens)


def find_heads(files: list[SourceFile], splits: list[str | None], source: TokenInput) -> tuple[list[int], list[str]]:
    """How many tokens at the start of each file continue the document before, and notes about partial documents.

    Raises SourceError if no file has an end token.
    """
    with storage.Threads(8) as pool:  # mostly waiting
        edges = list(pool.map(lambda file: find_edges(file, source), files))
    if all(edge.first is None for edge in edges):
        raise SourceError(
            "the files of tokens have no end token",
            f"file         {files[0].path}",
            f"looked for   {source.end}",
            "Give the end token of the sources with --source-eot. Or take rows of one length: --rows documents:2048.",
        )
    heads, partial = list[int](), list[str]()
    for group in series_of(files, splits):
        is_open = False
        for file, edge in zip(group, edges[len(heads) :], strict=False):
            if source.end_first and file is group[0] and edge.tokens and not edge.begins:
                partial.append(f"the first document of {file.path} has no end token before it: it may be cut off")
            if not is_open:
                heads.append(0)
            else:
                heads.append(WHOLE if edge.first is None else edge.first + (not source.end_first))
            is_open = is_open if not edge.tokens else (source.end_first or not edge.ends)
        if is_open and not source.end_first:
            partial.append(f"the last document of {group[-1].path} has no end token: it may be cut off")
    joined = sum(head != 0 for head in heads)
    notes = [f"{count(joined, 'file')} of tokens begin inside a document, which is joined"] if joined else []
    more = [f"{count(len(partial) - MAX_NOTES, 'other document')} may be cut off"] if len(partial) > MAX_NOTES else []
    return heads, [*notes, *partial[:MAX_NOTES], *more]


def series_of(files: list[SourceFile], splits: list[str | None]) -> Iterator[list[SourceFile]]:
    """The files in groups whose documents may go on in the next file."""
    group, before = list[SourceFile](), ("", -1)
    for file, split in zip(files, splits, strict=True):
        name, number, ending = re.fullmatch(r"(.*?)(\d*)(\D*)", file.path, re.DOTALL).groups()  # type: ignore[union-attr]
        this = f"{name}\0{ending}\0{split}", int(number or 0)
        if group and this != (before[0], before[1] + 1):
            yield group
            group = []
        group.append(file)
        before = this
    if group:
        yield group


def stands_first(files: list[SourceFile], splits: list[str | None], source: TokenInput, *, by_default: bool) -> bool:
    """Whether the end token stands before each document: a series begins with one and none ends with one."""
    begins = ends = False
    for group in series_of(files, splits):
        begins |= _first_with_tokens(group, source).begins
        ends |= _first_with_tokens(group[::-1], source).ends
    return by_default if begins == ends else begins


def _first_with_tokens(files: list[SourceFile], source: TokenInput) -> FileEdges:
    edges = (find_edges(file, source) for file in files)
    return next((edge for edge in edges if edge.tokens), FileEdges(None, begins=False, ends=False, tokens=0))


def with_joins(sources: pa.Table, source: TokenInput | None) -> tuple[pa.Table, list[str]]:
    """The table of sources with the column `head`, if they are files of tokens without an index, and notes."""
    if source is None or not len(sources) or sources["kind"][0].as_py() != "tokens":
        return sources, []
    names = [name for name in sources.column_names if name != "head"]
    sources = sources.select(names)
    heads, notes = find_heads(files_between(sources, 0, len(sources)), splits_of(sources), source)
    return sources.append_column("head", pa.array(heads, pa.int64())), notes
