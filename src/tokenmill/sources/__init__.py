"""Where documents come from: files are found by path, directory or glob; a module per kind cuts and reads them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.sources import arrow, jsonl, parquet, text
from tokenmill.sources.discovery import Discovery, discover, file_at, files_between, kind_of, with_identities
from tokenmill.sources.documents import Documents, ReadOptions, Slices, SourceFile, SourceKind

__all__ = [
    "KINDS",
    "Discovery",
    "discover",
    "file_at",
    "files_between",
    "kind_of",
    "read_documents",
    "split_file",
    "with_identities",
]

KINDS: Final[dict[str, SourceKind]] = {"parquet": parquet, "arrow": arrow, "jsonl": jsonl, "text": text}
# What pyarrow and the system raise for a file that is damaged, cut off or out of reach.
UNREADABLE = (pa.ArrowException, OSError, EOFError, UnicodeDecodeError)


def split_file(file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:
    """Cut a file into slices of about `unit_bytes` of text."""
    try:
        return KINDS[file.kind].split(file, options, unit_bytes)
    except UNREADABLE as error:
        raise _unreadable(file, None, error) from error


def read_documents(file: SourceFile, start: int, stop: int, options: ReadOptions) -> Iterator[Documents]:
    """The documents of one slice, of a file that is, before and after, what it was when the run was planned."""
    check_unchanged(file)
    try:
        yield from KINDS[file.kind].read(file, start, stop, options)
    except UNREADABLE as error:
        check_unchanged(file)
        raise _unreadable(file, (start, stop), error) from error
    check_unchanged(file)


def check_unchanged(file: SourceFile) -> None:
    """Raise if the file is not the one that was planned."""
    found = storage.stat(file.path)
    if found.fingerprint != file.fingerprint:
        raise SourceError(
            "a source changed since the run was planned",
            f"file         {file.path}",
            f"expected     {file.size} bytes (fingerprint {file.fingerprint})",
            f"found        {found.size} bytes (fingerprint {found.fingerprint})",
            "Restore the file, or start a new run with another --out.",
        )


def _unreadable(file: SourceFile, span: tuple[int, int] | None, error: Exception) -> Exception:
    if isinstance(error, MemoryError):  # says nothing about the source
        return error
    where = [f"slice        {span[0]} to {span[1]}"] if span else []
    return SourceError(
        f"a source of kind {file.kind} cannot be read",
        f"file         {file.path}",
        *where,
        f"reason       {error}",
        "It may be damaged or cut off: compare it with its origin.",
    )
