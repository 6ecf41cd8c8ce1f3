"""Read the rows of a slice that satisfy a filter. The columns of the filter are read first, then the text.

Row groups of Parquet are not read if their statistics exclude a match. The text of a row group is not read if no row of
it matches.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import SourceError
from tokenmill.sources import parquet
from tokenmill.sources.bad_rows import raise_or_keep
from tokenmill.sources.documents import (
    FILTERED,
    Columns,
    Documents,
    ReadOptions,
    RowArray,
    Slice,
    SourceFile,
    SourceKind,
)
from tokenmill.sources.where import Where, parse_where

parse_cached = functools.lru_cache(maxsize=4)(parse_where)


@dataclass(frozen=True, slots=True)
class _Selection:
    """The rows of a slice that do not satisfy the filter, and the row groups that have one that does."""

    excluded: RowArray
    groups: tuple[int, ...] | None = None
    unread_groups: int = 0


def read_selected(kind: SourceKind, file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
    """The documents of the slice that satisfy `options.where`. The first batch lists the rows that do not.

    A line of JSON Lines that is not an object has no columns: it stays a bad row.
    """
    selection = _select(kind, file, file_slice, options)
    nothing = pa.array([], pa.large_string())
    skipped = {FILTERED: selection.excluded} if len(selection.excluded) else {}
    yield Documents(nothing, np.empty(0, np.uint64), skipped=skipped, unread_groups=selection.unread_groups)
    # A bad row that the filter excludes must not end the run.
    reading = msgspec.structs.replace(options, on_bad="quarantine", groups=selection.groups)
    for documents in kind.read(file, file_slice, reading):
        bad = tuple(row for row in documents.bad if not np.isin(np.uint64(row.row), selection.excluded))
        kept = ~np.isin(documents.rows, selection.excluded)
        selected = documents if kept.all() else documents.filter(kept)
        yield replace(selected, bad=raise_or_keep(file, bad, options))


def _select(kind: SourceKind, file: SourceFile, file_slice: Slice, options: ReadOptions) -> _Selection:
    where = parse_cached(options.where)
    if file.kind != "parquet":
        batches = [
            batch.rows[~_matches(file, where, batch)]
            for batch in kind.read_columns(file, file_slice, where.columns, options)
        ]
        return _Selection(np.concatenate([np.empty(0, np.uint64), *batches]))
    edges, possible = parquet.matching_groups(file, file_slice, where)
    reading = msgspec.structs.replace(options, groups=possible)
    matched = [
        batch.rows[_matches(file, where, batch)]
        for batch in kind.read_columns(file, file_slice, where.columns, reading)
    ]
    rows = np.concatenate([np.empty(0, np.uint64), *matched])
    groups = np.unique(np.searchsorted(edges, rows, side="right") - 1)
    excluded = np.setdiff1d(np.arange(edges[0], edges[-1], dtype=np.uint64), rows, assume_unique=True)
    return _Selection(excluded, tuple(groups.tolist()), len(edges) - 1 - len(groups))


def _matches(file: SourceFile, where: Where, batch: Columns) -> npt.NDArray[np.bool_]:
    """Which rows satisfy the filter. An error names the file, because another file may have other types."""
    try:
        return where.matches(batch.values)
    except SourceError as error:
        raise SourceError(error.headline, f"file         {file.path}", *error.details) from error
