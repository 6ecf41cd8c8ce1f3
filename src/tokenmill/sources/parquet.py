"""Parquet: a slice is a range of row groups, a row is the row number in the file. Planning reads only the footer."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator

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
from tokenmill.sources.group_bounds import Bounds, chunk_bounds, may_match
from tokenmill.sources.packed_footer import spans
from tokenmill.sources.parquet_footer import Footer, footer_from_plan, pack_detail, read_footer, read_metadata, tail
from tokenmill.sources.text_columns import template_of
from tokenmill.sources.where import Where

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
    edges = pack(footer.text_bytes, unit_bytes)
    before = np.concatenate([[0], np.cumsum(footer.rows)])
    details = [
        pack_detail(footer, range(start, stop), int(before[start]))
        for start, stop in itertools.pairwise(edges.tolist())
    ]
    packed = [detail for detail in details if detail is not None]
    return Slices(
        edges[:-1],
        edges[1:],
        sums(footer.text_bytes, edges),
        sums(footer.rows, edges),
        packed if len(packed) == len(details) else None,
    )


def byte_ranges(file: SourceFile, file_slice: Slice | None, options: ReadOptions) -> list[Span]:
    """The column's pages if the plan holds their offsets; otherwise the end of the file, which is read first."""
    if file_slice is None or file_slice.detail is None or options.where:  # a filter needs the whole footer
        return tail(file)
    footer = footer_from_plan(file, file_slice, template_of(options).names)
    return _merge_spans([span for path in footer.paths for span in spans(footer.metadata, path.leaf, file.size)])


def read(file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
    """The rows of the row groups of the slice."""
    if file_slice.detail is not None:
        footer, groups = (
            footer_from_plan(file, file_slice, template_of(options).names),
            range(file_slice.stop - file_slice.start),
        )
    else:
        footer, groups = read_footer(file, template_of(options).names), range(file_slice.start, file_slice.stop)
    for streak in _streaks(groups, options):
        first = footer.first_row + int(footer.rows[: streak.start].sum())
        rows = range(first, first + int(footer.rows[streak.start : streak.stop].sum()))
        yield from number_rows(file, _columns(file, footer, streak, options), rows, options)


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
    metadata = read_metadata(file, where.columns)
    paths = _paths(file, metadata, where.columns)
    groups = [metadata.row_group(group) for group in range(file_slice.start, file_slice.stop)]
    before = sum(metadata.row_group(group).num_rows for group in range(file_slice.start))
    edges = before + np.concatenate([[0], np.cumsum([group.num_rows for group in groups])]).astype(np.int64)
    possible = [
        index for index, group in enumerate(groups) if may_match(where.root, functools.partial(_bounds, group, paths))
    ]
    return edges, tuple(possible)


def _bounds(group: pq.RowGroupMetaData, paths: dict[str, ColumnPath], name: str) -> Bounds:
    path = paths[name]
    return chunk_bounds(group.column(path.leaf), path.kind)


def _paths(file: SourceFile, metadata: pq.FileMetaData, names: tuple[str, ...]) -> dict[str, ColumnPath]:
    schema = metadata.schema.to_arrow_schema()
    return {name: plain_column(file, schema, name) for name in names}


def _columns(file: SourceFile, footer: Footer, groups: range, options: ReadOptions) -> Iterator[pa.Array]:
    text_bytes = int(footer.text_bytes[groups.start : groups.stop].sum())
    rows = int(footer.rows[groups.start : groups.stop].sum())
    batch_rows = options.batch_bytes * rows // max(text_bytes, 1)
    batch_rows = min(max(batch_rows, 1), MAX_ROWS_PER_BATCH)
    batches = _batches(file, footer.metadata, groups, footer.paths, batch_rows)
    yield from read_text(batches, footer.paths, options)


def require_columns(file: SourceFile, names: tuple[str, ...]) -> None:
    """Raise SourceError if the footer lacks one of these columns, or lists it as nested."""
    read_metadata(file, names)


def read_columns(
    file: SourceFile, file_slice: Slice | None, names: tuple[str, ...], options: ReadOptions
) -> Iterator[Columns]:
    """The values of some columns in the row groups of the slice. Reads the footer, of which the plan has one column."""
    metadata = read_metadata(file, names)
    rows_of = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    groups = range(len(rows_of)) if file_slice is None else range(file_slice.start, file_slice.stop)
    paths = _paths(file, metadata, names)
    for streak in _streaks(groups, options):
        first = sum(rows_of[: streak.start])
        rows = range(first, first + sum(rows_of[streak.start : streak.stop]))
        yield from number_values(file, _batches(file, metadata, streak, paths.values()), rows, paths)


def _batches(
    file: SourceFile,
    metadata: pq.FileMetaData,
    groups: range,
    paths: Iterable[ColumnPath],
    batch_rows: int = MAX_ROWS_PER_BATCH,
) -> Iterator[pa.RecordBatch]:
    leaves = sorted({path.leaf for path in paths})
    expected = [span for leaf in leaves for span in spans(metadata, leaf, file.size)[groups.start : groups.stop]]
    with storage.open_input(file.info, _merge_spans(expected), keep=True) as stream:
        reader = pq.ParquetFile(
            stream,
            metadata=metadata,
            pre_buffer=False,
            buffer_size=BUFFER_BYTES,
            page_checksum_verification=True,
        )
        yield from reader.iter_batches(
            batch_size=batch_rows,
            row_groups=list(groups),
            columns=[metadata.schema.column(leaf).path for leaf in leaves],
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
