"""Find source files by path, directory or glob, split them into slices, and read documents. One module per kind."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.sources import arrow, csv_files, jsonl, parquet, text
from tokenmill.sources.conversations import without_wrong
from tokenmill.sources.delimited import compression_ratio as compression_ratio
from tokenmill.sources.discovery import Discovery as Discovery
from tokenmill.sources.discovery import StoreGuard as StoreGuard
from tokenmill.sources.discovery import discover as discover
from tokenmill.sources.discovery import file_at as file_at
from tokenmill.sources.discovery import files_between as files_between
from tokenmill.sources.discovery import kind_of as kind_of
from tokenmill.sources.discovery import splits_of as splits_of
from tokenmill.sources.discovery import with_identities as with_identities
from tokenmill.sources.documents import ROW_KINDS as ROW_KINDS
from tokenmill.sources.documents import Columns, Documents, ReadOptions, Slice, Slices, SourceFile, SourceKind
from tokenmill.sources.ignored import Ignored as Ignored
from tokenmill.sources.prefixes import with_prefix
from tokenmill.sources.segments import with_spans
from tokenmill.sources.selection import read_selected
from tokenmill.sources.spelled import refuse_spelled
from tokenmill.sources.splits import SplitChoice as SplitChoice
from tokenmill.sources.token_lists import without_frame
from tokenmill.sources.token_source import OVERLAP, STREAM
from tokenmill.sources.token_streams import read_stream
from tokenmill.sources.tokens import delimited as token_files
from tokenmill.sources.tokens import indexed as indexed_token_files
from tokenmill.storage.untrusted.malformed import MalformedDataError

KINDS: Final[dict[str, SourceKind]] = {
    "parquet": parquet,
    "arrow": arrow,
    "jsonl": jsonl,
    "text": text,
    "csv": csv_files,
    "tokens": token_files,
    "indexed-tokens": indexed_token_files,
}
# Kinds that workers split: native code that parses a damaged file may crash the process, and indexes are long.
NATIVE_KINDS = ("parquet", "arrow", "tokens", "indexed-tokens")

# What pyarrow and the system raise for a file that is damaged, truncated or unreachable.
UNREADABLE = (MalformedDataError, pa.ArrowException, OSError, EOFError, UnicodeDecodeError)
# Upper bound for memory size / file size, compression included. A larger allocation comes from a damaged size field.
MAX_EXPANSION = 10_000


def split_file(file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:
    """Split a file into slices of about `unit_bytes` of text."""
    try:
        return KINDS[file.kind].split(file, options, unit_bytes)
    except UNREADABLE as error:
        raise _unreadable(file, None, error) from error


def read_documents(file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
    """The documents of one slice that satisfy the filter, if `options` has one.

    Checks before and after that the file has not changed since planning.
    """
    kind, tokens = KINDS[file.kind], options.tokens
    with _unchanged(file, file_slice):
        if tokens is not None and not tokens.format and tokens.rows in (STREAM, OVERLAP):
            yield from read_stream(kind, file, file_slice, options, tokens)
            return
        read = read_selected(kind, file, file_slice, options) if options.where else kind.read(file, file_slice, options)
        for documents in read:
            texts = with_spans(file, documents, options) if options.segments else documents
            texts = without_frame(file, texts, options)
            texts = without_wrong(file, documents, options) if options.messages else texts
            texts = with_prefix(texts) if options.prefix else texts
            yield refuse_spelled(file, texts, options)


def read_columns(
    file: SourceFile, file_slice: Slice | None, names: tuple[str, ...], options: ReadOptions
) -> Iterator[Columns]:
    """The values of some columns in one slice, or in the whole file, whatever their types are.

    Raises NoColumn if the file declares its columns and lacks one. Checks as `read_documents` does.
    """
    with _unchanged(file, file_slice):
        yield from KINDS[file.kind].read_columns(file, file_slice, names, options)


def require_columns(file: SourceFile, names: tuple[str, ...]) -> None:
    """Raise SourceError if a file declares its columns, and one of these is missing or not plain."""
    try:
        KINDS[file.kind].require_columns(file, names)
    except UNREADABLE as error:
        raise _unreadable(file, None, error) from error


def prefetch(file: SourceFile, file_slice: Slice | None, options: ReadOptions) -> None:
    """Start to fetch the bytes that reading a slice, or the whole file, needs, if the file is remote."""
    if storage.scheme(file.path):
        storage.prefetch(file.info, KINDS[file.kind].byte_ranges(file, file_slice, options))


@contextlib.contextmanager
def _unchanged(file: SourceFile, file_slice: Slice | None) -> Iterator[None]:
    """Raise if the file is not the planned one before, during and after the block, or if it cannot be read."""
    storage.check_unchanged(file.info)
    try:
        yield
    except UNREADABLE as error:
        storage.check_unchanged(file.info)
        raise _unreadable(file, file_slice, error) from error
    storage.check_unchanged(file.info)


def _unreadable(file: SourceFile, file_slice: Slice | None, error: Exception) -> Exception:
    if isinstance(error, MemoryError) and not _is_absurd(file, error):  # a lack of memory is not the source's fault
        return error
    where = [f"slice        {file_slice.start} to {file_slice.stop}"] if file_slice else []
    return SourceError(
        f"a source of kind {file.kind} cannot be read",
        f"file         {file.path}",
        *where,
        f"reason       {error}",
        "It may be damaged or cut off: compare it with the original.",
    )


def _is_absurd(file: SourceFile, error: MemoryError) -> bool:
    """Whether the failed allocation is larger than such a file can need, which means that a size field is damaged."""
    requested = max((int(number) for number in re.findall("[0-9]+", str(error))), default=0)
    return requested > MAX_EXPANSION * max(file.size, 1 << 20)
