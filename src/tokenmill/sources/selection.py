"""Read the rows of a slice that satisfy a filter. The columns of the filter are read first, then the text.

Row groups of Parquet are not read if their statistics exclude a match. The text of a row group is not read if no row of
it matches.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.errors import SourceError
from tokenmill.sources import parquet
from tokenmill.sources.bad_rows import raise_or_keep
from tokenmill.sources.columnar import ColumnPath, plain_column
from tokenmill.sources.documents import (
    FILTERED,
    Columns,
    Documents,
    Int64Array,
    ReadOptions,
    RowArray,
    Slice,
    SourceFile,
    SourceKind,
)
from tokenmill.sources.plain_values import as_plain
from tokenmill.sources.where import Comparison, Group, Value, Where, kind_name, parse_where, type_name

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
    nothing = pa.array([], pa.large_string() if options.tokens is None else pa.large_binary())
    skipped = {FILTERED: selection.excluded} if len(selection.excluded) else {}
    yield Documents(nothing, np.empty(0, np.uint64), skipped=skipped, unread_groups=selection.unread_groups)
    # A bad row that the filter excludes must not end the run.
    reading = msgspec.structs.replace(options, on_bad="quarantine", groups=selection.groups)
    for documents in kind.read(file, file_slice, reading):
        bad = tuple(row for row in documents.bad if not np.isin(np.uint64(row.row), selection.excluded))
        kept = ~np.isin(documents.rows, selection.excluded)
        selected = documents if kept.all() else documents.filter(kept)
        yield replace(selected, bad=raise_or_keep(file, bad, options.on_bad))


def _select(kind: SourceKind, file: SourceFile, file_slice: Slice, options: ReadOptions) -> _Selection:
    where = parse_cached(options.where)
    if file.kind != "parquet":
        batches = [
            batch.rows[~_matches(file, where, batch)]
            for batch in kind.read_columns(file, file_slice, where.columns, options)
        ]
        return _Selection(np.concatenate([np.empty(0, np.uint64), *batches]))
    edges, possible = _matching_groups(file, file_slice, where)
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


def _matching_groups(file: SourceFile, file_slice: Slice, where: Where) -> tuple[Int64Array, tuple[int, ...]]:
    """The first row of each row group of the slice and the end, and the groups whose statistics allow a match."""
    footer = parquet.read_footer(file, where.columns, plain_column)
    groups = parquet.row_groups(footer, file_slice)
    first = footer.row_range(groups).start
    edges = first + np.concatenate([[0], np.cumsum(footer.rows[groups.start : groups.stop])])
    paths = dict(zip(where.columns, footer.paths, strict=True))
    possible = [
        index
        for index, group in enumerate(map(footer.metadata.row_group, groups))
        if _may_match(where.root, functools.partial(_bounds, group, paths))
    ]
    return edges, tuple(possible)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the statistics say about a column in a row group. None stands for what they do not say."""

    low: Value | None = None
    high: Value | None = None
    has_nulls: bool | None = None
    has_values: bool = True


BoundsOf = Callable[[str], Bounds]


def _bounds(group: pq.RowGroupMetaData, paths: dict[str, ColumnPath], name: str) -> Bounds:
    """The bounds of a column in a row group. Only text, numbers and booleans are compared as the statistics order them.

    Other types are read as text. The statistics of some of them, such as durations, are numbers.
    """
    chunk, kind = group.column(paths[name].leaf), paths[name].kind
    found = chunk.statistics
    if found is None:
        return Bounds()
    nulls = found.null_count if found.has_null_count else None
    has_values = nulls is None or nulls < chunk.num_values
    has_nulls = None if nulls is None else nulls > 0
    low, high = (found.min, found.max) if found.has_min_max else (None, None)
    compared = kind_name(as_plain(pa.nulls(0, kind)).type)
    if isinstance(low, str | int | float) and isinstance(high, str | int | float) and type_name(low) == compared:
        return Bounds(low, high, has_nulls, has_values)
    return Bounds(None, None, has_nulls, has_values)


def _may_match(node: Comparison | Group, bounds_of: BoundsOf) -> bool:
    """Whether a row within these bounds can satisfy the expression. Never false if one does."""
    if isinstance(node, Group):
        parts = (_may_match(part, bounds_of) for part in node.parts)
        return all(parts) if node.operator == "and" else any(parts)
    bounds = bounds_of(node.column)
    if node.operator == "is null":
        return bounds.has_nulls is not False
    if node.operator == "is not null" or not bounds.has_values:
        return bounds.has_values
    if not _is_comparable(bounds, node.values):
        return True
    return any(_may_be(node.operator, bounds, value) for value in node.values)


def _is_comparable(bounds: Bounds, values: tuple[Value, ...]) -> bool:
    """Whether the bounds are of the type of the values. NaN cannot be a bound."""
    return all(
        bound is not None and bound == bound and type_name(bound) == type_name(value)  # noqa: PLR0124
        for bound in (bounds.low, bounds.high)
        for value in values
    )


def _may_be(operator: str, bounds: Bounds, value: Value) -> bool:
    low, high = bounds.low, bounds.high
    if operator in {"=", "in"}:
        return bool(low <= value <= high)  # type: ignore[operator] # comparable, as checked
    if operator in {"<", "<="}:
        return bool(low < value or (operator == "<=" and low == value))  # type: ignore[operator]
    if operator in {">", ">="}:
        return bool(high > value or (operator == ">=" and high == value))  # type: ignore[operator]
    # != and not in: only a constant column is excluded. NaN, which is unequal to everything, is not in the bounds.
    return isinstance(low, float) or not low == value == high
