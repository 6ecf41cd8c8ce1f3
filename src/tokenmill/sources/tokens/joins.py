"""Documents that are cut by files of tokens without an index: which tokens of a file continue the file before.

Files are joined if they are in one directory and one split, and have the same name with numbers that follow each other.
"""

from __future__ import annotations

import os.path
import re
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
    is_open, before = False, None
    for file, split, edge in zip(files, splits, edges, strict=True):
        name = _numbered(file.path, split)
        if before is None or name != (before[0], before[1] + 1, before[2]):
            partial += _partial(files, heads, source, is_open=is_open)
            is_open = False
            if source.end_first and edge.tokens and not edge.begins:
                partial.append(f"the first document of {file.path} may be the end of one")
        if not is_open:
            heads.append(0)
        elif edge.first is None:
            heads.append(WHOLE)
        else:
            heads.append(edge.first + (not source.end_first))
        is_open = is_open if not edge.tokens else (source.end_first or not edge.ends)
        before = name
    partial += _partial(files, heads, source, is_open=is_open)
    joined = sum(head != 0 for head in heads)
    notes = [f"{count(joined, 'file')} begin with the end of a document, which is joined"] if joined else []
    return heads, [*notes, *partial[:3], *([f"and {len(partial) - 3} more such documents"] if len(partial) > 3 else [])]


def _numbered(path: str, split: str | None) -> tuple[tuple[str, str | None], int, str]:
    """What the names of joined files have in common, the last number of a name, and what follows it."""
    directory, name = os.path.split(path)
    before, number, after = re.fullmatch(r"(.*?)(\d*)(\D*)", name, re.DOTALL).groups()  # type: ignore[union-attr]
    return (f"{directory}/{before}", split), int(number or 0), after


def _partial(files: list[SourceFile], heads: list[int], source: TokenInput, *, is_open: bool) -> list[str]:
    """The note about the last document of a series of files, if no end token follows it and one should."""
    if not heads or not is_open or source.end_first:
        return []
    return [f"the last document of {files[len(heads) - 1].path} has no end token: it may be cut off"]


def with_joins(sources: pa.Table, source: TokenInput | None) -> tuple[pa.Table, list[str]]:
    """The table of sources with the column `head`, if they are files of tokens without an index, and notes."""
    if source is None or not len(sources) or sources["kind"][0].as_py() != "tokens":
        return sources, []
    names = [name for name in sources.column_names if name != "head"]
    sources = sources.select(names)
    heads, notes = find_heads(files_between(sources, 0, len(sources)), splits_of(sources), source)
    return sources.append_column("head", pa.array(heads, pa.int64())), notes
