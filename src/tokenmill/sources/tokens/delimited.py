"""Files of tokens without an index: a row is the token at which a document starts, a slice is a range of tokens.

A document is what stands between two end tokens, and belongs to the slice in which it starts. With the end token after
each document, a document starts behind it; with the end token before each document, it starts with it. A document that
goes on in the next file is read to its end there (see `joins`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tokenmill import storage
from tokenmill.sources.documents import (
    WHOLE,
    Columns,
    Documents,
    Int64Array,
    ReadOptions,
    Slice,
    Slices,
    SourceFile,
    Span,
)
from tokenmill.sources.token_source import TokenInput
from tokenmill.sources.tokens.opened import (
    ID_BYTES,
    as_documents,
    no_columns,
    open_source,
    require_columns,
    token_source,
)
from tokenmill.token_files.protocol import Tokens
from tokenmill.token_files.token_file import TokenFile

# What is read at first to find the end of the last document of a slice.
SCAN_TOKENS = 1 << 13


def split(file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:
    """Ranges of tokens, computed from the size of the file."""
    tokens = open_source(file, token_source(options)).tokens
    edges = np.append(np.arange(0, tokens, max(unit_bytes // ID_BYTES, 1), dtype=np.int64), tokens)
    return Slices(edges[:-1], edges[1:], np.diff(edges) * ID_BYTES, None)


def byte_ranges(file: SourceFile, file_slice: Slice | None, options: ReadOptions) -> list[Span]:
    """The bytes of the tokens of the slice."""
    if file_slice is None:
        return [(0, file.size)]
    return [open_source(file, token_source(options)).byte_range(file_slice.start, file_slice.stop)]


def read(file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
    """The documents that start in the slice."""
    source = token_source(options)
    tokens, scan = open_source(file, source), _Scan(file, source, options)
    # The end tokens before the documents of the slice.
    shift = int(not source.end_first)
    first, last = max(file_slice.start - shift, 0), file_slice.stop - shift
    if file_slice.start == 0 and file.head == 0:
        scan.begin(tokens)
    for start, chunk in zip(range(first, last, scan.chunk), tokens.batches(first, last, scan.chunk), strict=True):
        documents = scan.take(chunk, start)
        if documents is not None:
            yield documents
    if scan.opening is not None:
        if not scan.finish_in(tokens, last):
            scan.finish_after(file.rest)
        yield scan.close()


@dataclass
class _Scan:
    """The document that is open at a place of a file: where the end token before it is, and its tokens so far."""

    file: SourceFile
    source: TokenInput
    options: ReadOptions
    opening: int | None = None
    _held: list[Tokens] = field(default_factory=list)
    _tokens: int = 0
    _dropped: int = 0

    @property
    def chunk(self) -> int:
        """How many tokens are read at a time."""
        return max(self.options.batch_bytes // ID_BYTES, 1)

    def begin(self, tokens: TokenFile) -> None:
        """Open the document at the start of the file, unless an end token is before it."""
        if not self.source.end_first or not (tokens.read(0, min(1, tokens.tokens)) == self.source.end).any():
            self.opening = -1

    def take(self, chunk: Tokens, position: int) -> Documents | None:
        """Take the next tokens of the slice. Returns the documents that end in them, if there are any."""
        ends = np.flatnonzero(chunk == self.source.end)
        if self.opening is None and len(ends):
            first = int(ends[0]) + 1
            self.opening, position = position + first - 1, position + first
            chunk, ends = chunk[first:], ends[1:] - first
        if self.opening is None:
            return None
        if not len(ends):
            self._hold(chunk)
            return None
        last = int(ends[-1])
        lengths = np.diff(ends, prepend=-1) - 1
        lengths[0] += self._tokens
        openings = np.append(self.opening, ends[:-1] + position)
        documents = self._documents([*self._held, np.delete(chunk[:last], ends[:-1])], lengths, openings)
        self.opening, self._held, self._tokens, self._dropped = position + last, [], 0, 0
        self._hold(chunk[last + 1 :])
        return documents

    def finish_in(self, tokens: TokenFile, position: int) -> bool:
        """Read on until the open document ends; False if it does not end in the file."""
        step = SCAN_TOKENS
        while position < tokens.tokens:
            chunk = tokens.read(position, min(position + step, tokens.tokens))
            ends = np.flatnonzero(chunk == self.source.end)
            self._hold(chunk[: ends[0]] if len(ends) else chunk)
            if len(ends):
                return True
            position, step = position + len(chunk), min(2 * step, self.chunk)
        return False

    def finish_after(self, rest: tuple[SourceFile, ...]) -> None:
        """Read what the open document has in the files that follow."""
        for file in rest:
            tokens = open_source(file, self.source)
            for chunk in tokens.batches(0, tokens.tokens if file.head == WHOLE else file.head, self.chunk):
                self._hold(chunk[chunk != self.source.end])
            storage.check_unchanged(file.info)

    def close(self) -> Documents:
        """The open document."""
        return self._documents(self._held, np.array([self._tokens]), np.array([self.opening]))

    def _hold(self, tokens: Tokens) -> None:
        """Keep some tokens of the open document, unless it is too long."""
        limit = self.options.document_bytes
        self._held.append(tokens)
        self._tokens += len(tokens)
        if limit is not None and self._tokens * ID_BYTES > limit:
            self._dropped += self._tokens
            self._held, self._tokens = [], 0

    def _documents(self, parts: list[Tokens], lengths: Int64Array, openings: Int64Array) -> Documents:
        """Documents of these lengths behind the end tokens at `openings`; -1 stands for the start of the file."""
        rows = np.maximum(openings + (not self.source.end_first), 0).astype(np.uint64)
        tokens = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return as_documents(self.file, tokens, lengths, rows, self.options, self._dropped)


def read_columns(
    file: SourceFile, file_slice: Slice | None, names: tuple[str, ...], options: ReadOptions
) -> Iterator[Columns]:
    """Raise UsageError: files of tokens have no columns."""
    del file_slice, options
    return no_columns(file, names)


__all__ = ["byte_ranges", "read", "read_columns", "require_columns", "split"]
