"""`inspect`: the facts of a store, one of its documents, or its skipped rows."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, overload

import msgspec
import numpy as np

from tokenmill.api.parameters import store_paths
from tokenmill.errors import UsageError
from tokenmill.humanize import Readable, count
from tokenmill.options import Stores, StrPath
from tokenmill.sources import ROW_KINDS, file_at
from tokenmill.sources.line_numbers import line_numbers
from tokenmill.store.chain import Change
from tokenmill.store.job import Run
from tokenmill.store.manifest import trained_tokens
from tokenmill.store.part import SkippedRow
from tokenmill.store.reader import Store
from tokenmill.system.arguments import checked


class StoreInfo(Readable, msgspec.Struct, frozen=True):
    """A store in numbers, the run that made it, and the erasures of it, in order."""

    directory: str
    documents: int
    tokens: int
    dtype: str
    text_bytes: int
    skipped_rows: int
    run: Run
    history: list[Change] = []
    trained_tokens: int | None = None


class DocumentInfo(Readable, msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One document, with its tokens and their text.

    `row` is the row in the source. If the source has no rows, `byte` is where the document starts, and `line` its line
    in JSON Lines, if the source can still be read. `columns` are the kept columns of the document. `erased` is the
    request that erased it. `trained` are the ranges of its tokens that are trained on; None if all are.
    """

    document: int
    store: str
    source: str
    kind: str
    row: int | None = None
    byte: int | None = None
    line: int | None = None
    tokens: list[int]
    text: str
    columns: dict[str, str | int | float | bool | None] = {}
    erased: str = ""
    trained: list[tuple[int, int]] | None = None

    @property
    def position(self) -> tuple[str, int]:
        """The name and the number of its place in the source: a row, or the byte at which the document starts."""
        return ("byte", self.byte) if self.byte is not None else ("row", self.row or 0)


class SkippedRange(Readable, msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Rows of a source that are not in the store, and the reason.

    They are `rows` rows from `row` to `last`. If the source has no rows, `byte` is where the first one starts. `line`
    is its line in JSON Lines, if the source can still be read.
    """

    source: str
    kind: str
    row: int | None = None
    byte: int | None = None
    last: int
    rows: int
    line: int | None = None
    reason: str

    @property
    def position(self) -> tuple[str, int]:
        """The name and the number of the first row's place in the source."""
        return ("byte", self.byte) if self.byte is not None else ("row", self.row or 0)


@overload
def inspect(directory: StrPath) -> StoreInfo: ...  # type: ignore[overload-overlap] # a str is a Sequence[str], too
@overload
def inspect(directory: Sequence[StrPath]) -> list[StoreInfo]: ...
@overload
def inspect(directory: Stores, *, doc: int) -> DocumentInfo: ...
@overload
def inspect(directory: Stores, *, skipped: Literal[True]) -> list[SkippedRange]: ...
@checked
def inspect(
    directory: Stores, *, doc: int | None = None, skipped: bool = False
) -> StoreInfo | list[StoreInfo] | DocumentInfo | list[SkippedRange]:
    """Show the facts of a store, one of its documents, or its skipped rows.

    A list of stores gives the facts of each. Documents are numbered through all stores.

    Args:
        directory: The store: a path, or an address such as `s3://bucket/run`; or several.
        doc: The number of the document to show. -1 is the last.
        skipped: List the skipped rows, with the reason.
    """
    if doc is not None and skipped:
        raise UsageError("--doc is given with --skipped", "Choose one of them.")
    if doc is not None:
        return document_info(Store(store_paths(directory)), doc)
    if skipped:
        return list(skipped_ranges(Store(store_paths(directory))))
    if isinstance(directory, str | os.PathLike):
        return _store_info(Store(os.fspath(directory)))
    return [_store_info(Store(store)) for store in store_paths(directory)]


def _store_info(store: Store) -> StoreInfo:
    text_bytes, skipped = (int(store.manifest[name].to_numpy().sum()) for name in ("text_bytes", "skipped"))
    history = [change for member in store.collection.members for change in member.head.history]
    numbers = len(store), store.token_count, str(store.dtype), text_bytes, skipped
    return StoreInfo(store.directory, *numbers, store.run, history, trained_tokens(store.manifest))


def document_info(store: Store, position: int) -> DocumentInfo:
    """One document of a store. Raises UsageError if the store has no document of this number."""
    try:
        document = store.document(position)
    except IndexError:
        raise UsageError(
            f"there is no document {position}", f"The store has {count(len(store), 'document')}, numbered from 0."
        ) from None
    tokens, number = document.tokens.tolist(), position % len(store)
    columns = store.columns(start=number, stop=number + 1).to_pylist() if store.collection.kept_columns else [{}]
    return DocumentInfo(
        document=number,
        store=document.store,
        source=document.source,
        kind=document.kind,
        row=document.row if document.kind in ROW_KINDS else None,
        byte=None if document.kind in ROW_KINDS else document.row,
        line=store.line(position),
        tokens=tokens,
        text=b"".join(map(store.token_bytes, tokens)).decode(errors="replace"),
        columns=columns[0],
        erased=document.erased,
        trained=store.trained(number),
    )


def skipped_ranges(store: Store, limit: int | None = None) -> Iterator[SkippedRange]:
    """The skipped rows of a store, or the first of them."""
    entries = itertools.islice(store.skipped(), limit)
    for source, group in itertools.groupby(entries, lambda entry: entry.source):
        yield from _ranges_of(store, source, list(group))


def _ranges_of(store: Store, source: int, entries: Sequence[SkippedRow]) -> Iterable[SkippedRange]:
    """Rows of one source, with the numbers of their lines if it is JSON Lines."""
    file = file_at(store.sources, source)
    has_rows = file.kind in ROW_KINDS
    lines = line_numbers(file, np.array([entry.first for entry in entries], np.uint64)).tolist()
    for entry, line in zip(entries, lines, strict=True):
        yield SkippedRange(
            source=file.path,
            kind=file.kind,
            row=entry.first if has_rows else None,
            byte=None if has_rows else entry.first,
            last=entry.last,
            rows=entry.rows,
            line=line or None,
            reason=entry.reason,
        )
