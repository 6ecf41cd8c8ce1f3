"""Files of tokens, opened as a job reads them, and their documents as arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from tokenmill.errors import UsageError
from tokenmill.sources.bad_rows import TOO_LONG, bad_row, without_rows
from tokenmill.sources.documents import Columns, Documents, Int64Array, ReadOptions, RowArray, SourceFile
from tokenmill.sources.token_source import OVERLAP, TokenInput
from tokenmill.storage.arrow_text import binary_array
from tokenmill.token_files.protocol import Tokens
from tokenmill.token_files.recognize import open_tokens
from tokenmill.token_files.token_file import Positions, TokenFile, TokenRows, as_ids

ID_BYTES = 4
"""The bytes of an id while a source is read."""


def token_source(options: ReadOptions) -> TokenInput:
    """How the files of a job hold tokens. Planning has found it."""
    if options.tokens is None:
        raise UsageError("the sources are files of tokens, and the job is about text")
    return options.tokens


def open_source(file: SourceFile, source: TokenInput) -> TokenFile:
    """Open a file of tokens. Rows that are documents become its index, and rows that overlap are joined."""
    tokens = open_tokens(file.info, source.format, source.dtype)
    if source.rows == OVERLAP:
        return _joined(tokens, source.row_tokens)
    return _with_rows(tokens, source.row_tokens) if source.row_tokens else tokens


def _with_rows(tokens: TokenFile, length: int) -> TokenFile:
    """The file with its rows as documents. The last one may be shorter."""

    def edges(first: int, last: int) -> Positions:
        return np.minimum(np.arange(first, last + 1, dtype=np.int64) * length, tokens.tokens)

    return replace(tokens, documents=-(-tokens.tokens // length), edges=edges)


def _joined(tokens: TokenFile, length: int) -> TokenFile:
    """The file without the first token of each row but the first, which repeats the last one of the row before."""
    item, parts = np.dtype(tokens.dtype).itemsize, list[TokenRows]()
    for rows in tokens.rows:
        if rows.count == 1 and tokens.row_tokens is None:  # the file does not state its rows
            count, rest = divmod(rows.tokens, length)
            parts += [TokenRows(rows.first_byte, count, length, length * item)] if count else []
            first_byte = rows.first_byte + count * length * item
            parts += [TokenRows(first_byte, 1, rest, rest * item)] if rest else []
        else:
            parts.append(rows)
    joined = [TokenRows(parts[0].first_byte, 1, 1, item)] if parts else []
    shorter = (replace(rows, first_byte=rows.first_byte + item, tokens=rows.tokens - 1, before=b"") for rows in parts)
    joined += [rows for rows in shorter if rows.tokens]
    return replace(tokens, rows=tuple(joined))


def as_documents(  # noqa: PLR0913, PLR0917 - the documents, and how those that are too long are handled
    file: SourceFile, tokens: Tokens, lengths: Int64Array, rows: RowArray, options: ReadOptions, dropped: int = 0
) -> Documents:
    """Documents that follow each other in `tokens`. Those that are too long are bad rows.

    `dropped` tokens of the first one are not held, because it is too long.
    """
    ids = np.ascontiguousarray(as_ids(tokens, file.info))
    documents = Documents(binary_array(ids.view(np.uint8), np.append(0, np.cumsum(lengths)) * ID_BYTES), rows)
    whole = lengths.copy()
    whole[:1] += dropped
    is_long = whole * ID_BYTES > (options.document_bytes or np.iinfo(np.int64).max)
    if not is_long.any():
        return documents
    bad = [
        bad_row(int(row), TOO_LONG, f"{length:,} tokens", b"")
        for row, length in zip(rows[is_long].tolist(), whole[is_long].tolist(), strict=True)
    ]
    return without_rows(file, documents, is_long, bad, options)


def require_columns(file: SourceFile, names: tuple[str, ...]) -> None:
    """Raise UsageError: files of tokens have no columns."""
    raise UsageError("files of tokens have no columns", f"file         {file.path}", f"column       {', '.join(names)}")


def no_columns(file: SourceFile, names: tuple[str, ...]) -> Iterator[Columns]:
    """Raise UsageError when it is read: files of tokens have no columns."""
    require_columns(file, names)
    yield from ()
