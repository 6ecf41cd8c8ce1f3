"""Parquet: a slice is a range of row groups, a row is the row number in the file. Planning reads only the footer."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill import storage
from tokenmill.sources.columnar import number_rows, number_values, pack, sums
from tokenmill.sources.documents import Columns, Documents, ReadOptions, Slice, Slices, SourceFile, Span
from tokenmill.sources.packed_footer import spans
from tokenmill.sources.parquet_footer import Footer, footer_from_plan, pack_detail, read_footer, read_metadata, tail

# Compressed pages are read in chunks of this size, so that a huge row group does not fill the memory.
BUFFER_BYTES = 1 << 20
# A dictionary page may repeat a long value in every row, which the size of the column chunk does not show.
MAX_ROWS_PER_BATCH = 2048
# Two row groups are fetched with one request if the gap between them is at most this fraction of the request.
MAX_GAP_FRACTION = 0.02


def split(file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:
    """Ranges of row groups that hold about `unit_bytes` in the text column each."""
    footer = read_footer(file, options.column)
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
    if file_slice is None or file_slice.detail is None:
        return tail(file)
    footer = footer_from_plan(file, file_slice, options.column)
    return _merge_spans(spans(footer.metadata, footer.leaf, file.size))


def read(file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
    """The rows of the row groups of the slice."""
    if file_slice.detail is not None:
        footer, groups = footer_from_plan(file, file_slice, options.column), range(file_slice.stop - file_slice.start)
    else:
        footer, groups = read_footer(file, options.column), range(file_slice.start, file_slice.stop)
    first = footer.first_row + int(footer.rows[: groups.start].sum())
    rows = range(first, first + int(footer.rows[groups.start : groups.stop].sum()))
    yield from number_rows(file, _columns(file, footer, groups, options), rows, options)


def _columns(file: SourceFile, footer: Footer, groups: range, options: ReadOptions) -> Iterator[pa.Array]:
    text_bytes = int(footer.text_bytes[groups.start : groups.stop].sum())
    rows = int(footer.rows[groups.start : groups.stop].sum())
    batch_rows = options.batch_bytes * rows // max(text_bytes, 1)
    expected = _merge_spans(spans(footer.metadata, footer.leaf, file.size)[groups.start : groups.stop])
    with storage.open_input(file.info, expected, keep=True) as stream:
        reader = pq.ParquetFile(
            stream,
            metadata=footer.metadata,
            pre_buffer=False,
            buffer_size=BUFFER_BYTES,
            page_checksum_verification=True,
        )
        for batch in reader.iter_batches(
            batch_size=min(max(batch_rows, 1), MAX_ROWS_PER_BATCH),
            row_groups=list(groups),
            columns=[options.column],
            use_threads=False,
        ):
            yield batch.column(0)


def require_columns(file: SourceFile, names: tuple[str, ...]) -> None:
    """Raise SourceError if the footer lacks one of these columns, or lists it as nested."""
    read_metadata(file, names)


def read_columns(
    file: SourceFile, file_slice: Slice | None, names: tuple[str, ...], options: ReadOptions
) -> Iterator[Columns]:
    """The values of some columns in the row groups of the slice. Reads the footer, of which the plan has one column."""
    del options
    metadata = read_metadata(file, names)
    rows_of = [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]
    groups = range(len(rows_of)) if file_slice is None else range(file_slice.start, file_slice.stop)
    first = sum(rows_of[: groups.start])
    rows = range(first, first + sum(rows_of[groups.start : groups.stop]))
    yield from number_values(file, _batches(file, metadata, groups, names), rows, names)


def _batches(
    file: SourceFile, metadata: pq.FileMetaData, groups: range, names: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    leaves = [leaf for leaf in range(metadata.num_columns) if metadata.schema.column(leaf).path in names]
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
            batch_size=MAX_ROWS_PER_BATCH, row_groups=list(groups), columns=list(names), use_threads=False
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
