"""Where documents come from: files are found by path, directory or glob; a module per kind cuts and reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.sources import arrow, jsonl, parquet, text
from tokenmill.sources.discovery import Discovery, discover, file_at, files_between, kind_of, with_identities
from tokenmill.sources.documents import Documents, ReadOptions, Slices, SourceFile, SourceKind
from tokenmill.storage.damage import Damage

__all__ = [
    "KINDS",
    "NATIVE_KINDS",
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
NATIVE_KINDS = ("parquet", "arrow")
"""Those that native code takes apart: a damaged file may kill the process that splits it."""
# What pyarrow and the system raise for a file that is damaged, cut off or out of reach.
UNREADABLE = (Damage, pa.ArrowException, OSError, EOFError, UnicodeDecodeError)

MOST_EXPANSION = 10_000
"""How many times its size a file may take in memory, compressed as it may be."""


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
    if isinstance(error, MemoryError) and not _is_absurd(file, error):  # says nothing about the source
        return error
    where = [f"slice        {span[0]} to {span[1]}"] if span else []
    return SourceError(
        f"a source of kind {file.kind} cannot be read",
        f"file         {file.path}",
        *where,
        f"reason       {error}",
        "It may be damaged or cut off: compare it with its origin.",
    )


def _is_absurd(file: SourceFile, error: MemoryError) -> bool:
    """Whether more memory was asked for than such a file can need: a damaged size."""
    asked = max((int(number) for number in re.findall("[0-9]+", str(error))), default=0)
    return asked > MOST_EXPANSION * max(file.size, 1 << 20)
