"""Parquet: a slice is a range of row groups, a row is the row number in the file. Planning reads only the footer."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill import storage
from tokenmill.sources.columnar import (
    ColumnPath,
    number_rows,
    number_values,
    pack,
    plain_column,
    read_text,
    refuse_conversations,
    sums,
)
from tokenmill.sources.documents import Columns, Documents, Int64Array, ReadOptions, Slice, Slices, SourceFile, Span
from tokenmill.sources.parquet_footer import Footer, read_footer, tail
from tokenmill.sources.plain_values import as_plain
from tokenmill.sources.text_columns import template_of
from tokenmill.sources.where import Comparison, Group, Value, Where, kind_name, type_name

# Compressed pages are read in chunks of this size, so that a huge row group does not fill the memory.
BUFFER_BYTES = 1 << 20
# A dictionary page may repeat a long value in every row, which the size of the column chunk does not show.
MAX_ROWS_PER_BATCH = 2048
# Two row groups are fetched with one request if the gap between them is at most this fraction of the request.
MAX_GAP_FRACTION = 0.02


def split(file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:
    """Ranges of row groups that hold about `unit_bytes` in the text column each."""
    footer = read_footer(file, template_of(options).names)
    refuse_conversations(file, footer.paths, options)
    edges = pack(footer.column_bytes, unit_bytes)
    return Slices(edges[:-1], edges[1:], sums(footer.column_bytes, edges), sums(footer.rows, edges))


def byte_ranges(file: SourceFile, file_slice: Slice | None, options: ReadOptions) -> list[Span]:
    """The pages of the text in a slice, by the footer; of a whole file its end, where the footer is."""
    if file_slice is None or options.where:  # a filter decides which row groups are read
        return tail(file)
    footer = read_footer(file, template_of(options).names)
    return _merge_spans(footer.spans(_groups(footer, file_slice), file.size))


def read(file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
    """The rows of the row groups of the slice."""
    footer = read_footer(file, template_of(options).names)
    for streak in _streaks(_groups(footer, file_slice), options):
        yield from number_rows(file, _columns(file, footer, streak, options), footer.row_range(streak), options)


def _groups(footer: Footer, file_slice: Slice | None) -> range:
    """The row groups of a slice, or of the whole file. Raises EOFError if the file does not have them."""
    if file_slice is None:
        return range(len(footer.rows))
    if not 0 <= file_slice.start <= file_slice.stop <= len(footer.rows):
        raise EOFError(f"it has {len(footer.rows):,} row groups")
    return range(file_slice.start, file_slice.stop)


def _streaks(groups: range, options: ReadOptions) -> Iterator[range]:
    """The row groups that are read, as ranges: all, or those that `options.groups` counts from the first one."""
    if options.groups is None:
        yield groups
        return
    chosen = np.array(options.groups, np.int64)
    for streak in np.split(chosen, np.flatnonzero(np.diff(chosen) != 1) + 1):
        if len(streak):
            yield range(groups.start + int(streak[0]), groups.start + int(streak[-1]) + 1)


def matching_groups(file: SourceFile, file_slice: Slice, where: Where) -> tuple[Int64Array, tuple[int, ...]]:
    """The first row of each row group of the slice and the end, and the groups whose statistics allow a match."""
    footer = read_footer(file, where.columns, plain_column)
    groups = _groups(footer, file_slice)
    first = footer.row_range(groups).start
    edges = first + np.concatenate([[0], np.cumsum(footer.rows[groups.start : groups.stop])])
    paths = dict(zip(where.columns, footer.paths, strict=True))
    possible = [
        index
        for index, group in enumerate(map(footer.metadata.row_group, groups))
        if may_match(where.root, functools.partial(_bounds, group, paths))
    ]
    return edges, tuple(possible)


def _bounds(group: pq.RowGroupMetaData, paths: dict[str, ColumnPath], name: str) -> Bounds:
    path = paths[name]
    return chunk_bounds(group.column(path.leaf), path.kind)


def _columns(file: SourceFile, footer: Footer, groups: range, options: ReadOptions) -> Iterator[pa.Array]:
    text_bytes = int(footer.column_bytes[groups.start : groups.stop].sum())
    rows = len(footer.row_range(groups))
    batch_rows = options.batch_bytes * rows // max(text_bytes, 1)
    batch_rows = min(max(batch_rows, 1), MAX_ROWS_PER_BATCH)
    yield from read_text(_batches(file, footer, groups, batch_rows), footer.paths, options)


def require_columns(file: SourceFile, names: tuple[str, ...]) -> None:
    """Raise SourceError if the footer lacks one of these columns, or lists it as nested."""
    read_footer(file, names, plain_column)


def read_columns(
    file: SourceFile, file_slice: Slice | None, names: tuple[str, ...], options: ReadOptions
) -> Iterator[Columns]:
    """The values of some columns in the row groups of the slice."""
    footer = read_footer(file, names, plain_column)
    paths = dict(zip(names, footer.paths, strict=True))
    for streak in _streaks(_groups(footer, file_slice), options):
        yield from number_values(file, _batches(file, footer, streak), footer.row_range(streak), paths)


def _batches(
    file: SourceFile, footer: Footer, groups: range, batch_rows: int = MAX_ROWS_PER_BATCH
) -> Iterator[pa.RecordBatch]:
    leaves = sorted({path.leaf for path in footer.paths})
    with storage.open_input(file.info, _merge_spans(footer.spans(groups, file.size)), keep=True) as stream:
        reader = pq.ParquetFile(
            stream,
            metadata=footer.metadata,
            pre_buffer=False,
            buffer_size=BUFFER_BYTES,
            page_checksum_verification=True,
        )
        yield from reader.iter_batches(
            batch_size=batch_rows,
            row_groups=list(groups),
            columns=[footer.metadata.schema.column(leaf).path for leaf in leaves],
            use_threads=False,
        )


def _merge_spans(page_spans: list[Span]) -> list[Span]:
    """Merge spans with small gaps between them, so that one request fetches them."""
    merged: list[Span] = []
    for start, stop in sorted(page_spans):
        if merged and 0 <= start - merged[-1][1] <= MAX_GAP_FRACTION * (stop - merged[-1][0]):
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return merged


@dataclass(frozen=True, slots=True)
class Bounds:
    """What the statistics say about a column in a row group. None stands for what they do not say."""

    low: Value | None = None
    high: Value | None = None
    has_nulls: bool | None = None
    has_values: bool = True


BoundsOf = Callable[[str], Bounds]


def chunk_bounds(chunk: pq.ColumnChunkMetaData, kind: pa.DataType) -> Bounds:
    """The bounds of a column chunk. Only text, numbers and booleans are compared in the order of the statistics.

    Other types are read as text. The statistics of some of them, such as durations, are numbers.
    """
    found = chunk.statistics
    if found is None:
        return Bounds()
    nulls = found.null_count if found.has_null_count else None
    has_values = nulls is None or nulls < chunk.num_values
    has_nulls = None if nulls is None else nulls > 0
    low, high = (found.min, found.max) if found.has_min_max else (None, None)
    if not isinstance(low, str | int | float) or not isinstance(high, str | int | float):
        return Bounds(None, None, has_nulls, has_values)
    if type_name(low) != kind_name(as_plain(pa.nulls(0, kind)).type):
        return Bounds(None, None, has_nulls, has_values)
    return Bounds(low, high, has_nulls, has_values)


def may_match(node: Comparison | Group, bounds_of: BoundsOf) -> bool:
    """Whether a row within these bounds can satisfy the expression. Never false if one does."""
    if isinstance(node, Group):
        parts = (may_match(part, bounds_of) for part in node.parts)
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
