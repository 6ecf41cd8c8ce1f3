"""Parquet: a slice is a range of row groups, a row is the row number in the file. Planning reads only the footer."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill import storage
from tokenmill.sources.columnar import checked_counts, number_rows, pack, sums, text_column
from tokenmill.sources.documents import Documents, Int64Array, ReadOptions, Slice, Slices, SourceFile, Span
from tokenmill.sources.parquet_encryption import refuse_encrypted_column, refuse_encrypted_footer
from tokenmill.sources.parquet_footer import pack_footer, read_footer, spans

# Compressed pages are read in chunks of this size, so that a huge row group does not fill the memory.
BUFFER_BYTES = 1 << 20
# A dictionary page may repeat a long value in every row, which the size of the column chunk does not show.
MAX_ROWS_PER_BATCH = 2048
# The first read of a remote file fetches this much of its end: most footers are shorter.
TAIL_BYTES = 64 << 10
# A row group takes more than this in a footer, so the file size limits the number of row groups.
MIN_GROUP_BYTES = 16
# Sanity limit for a row number that is read from the plan.
MAX_FIRST_ROW = 1 << 62
# Two row groups are fetched with one request if the gap between them is at most this fraction of the request.
MAX_GAP_FRACTION = 0.02


@dataclass(frozen=True, slots=True)
class _Footer:
    """The row groups of a file or of a slice; the first of them starts at row `first_row` of the file."""

    metadata: pq.FileMetaData
    leaf: int
    first_row: int
    rows: Int64Array
    text_bytes: Int64Array


def split(file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:
    """Ranges of row groups that hold about `unit_bytes` in the text column each."""
    footer = _footer(file, options.column)
    edges = pack(footer.text_bytes, unit_bytes)
    before = np.concatenate([[0], np.cumsum(footer.rows)])
    details = [
        _pack_detail(footer, range(start, stop), int(before[start]))
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
        return _tail(file)
    footer = _footer_from_plan(file, file_slice, options.column)
    return _merge_spans(spans(footer.metadata, footer.leaf, file.size))


def read(file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
    """The rows of the row groups of the slice."""
    if file_slice.detail is not None:
        footer, groups = _footer_from_plan(file, file_slice, options.column), range(file_slice.stop - file_slice.start)
    else:
        footer, groups = _footer(file, options.column), range(file_slice.start, file_slice.stop)
    first = footer.first_row + int(footer.rows[: groups.start].sum())
    rows = range(first, first + int(footer.rows[groups.start : groups.stop].sum()))
    yield from number_rows(file, _columns(file, footer, groups, options), rows, options)


def _columns(file: SourceFile, footer: _Footer, groups: range, options: ReadOptions) -> Iterator[pa.Array]:
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


def _merge_spans(page_spans: list[Span]) -> list[Span]:
    """Merge spans with small gaps between them, so that one request fetches them."""
    merged: list[Span] = []
    for start, stop in sorted(page_spans):
        if merged and 0 <= start - merged[-1][1] <= MAX_GAP_FRACTION * (stop - merged[-1][0]):
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((start, stop))
    return merged


def _pack_detail(footer: _Footer, groups: range, first_row: int) -> bytes | None:
    """The `Slice.detail` that goes into the plan: the first row number, then the packed footer of the row groups."""
    packed = pack_footer(footer.metadata, footer.leaf, groups)
    return None if packed is None else first_row.to_bytes(8, "little") + packed


def _footer_from_plan(file: SourceFile, file_slice: Slice, column: str) -> _Footer:
    """The footer of a slice, restored from `Slice.detail`."""
    detail, groups = file_slice.detail or b"", file_slice.stop - file_slice.start
    first = int.from_bytes(detail[:8], "little")
    if not 0 <= groups <= file.size // MIN_GROUP_BYTES or first > MAX_FIRST_ROW:
        raise EOFError(f"the plan has {groups:,} row groups of a file of {file.size:,} bytes, from row {first:,} on")
    return _describe(file, read_footer(detail[8:], groups), column, first)


# Consecutive units often read the same file. Only two footers are kept, because one may take megabytes.
@functools.lru_cache(maxsize=2)
def _footer(file: SourceFile, column: str) -> _Footer:
    with storage.open_input(file.info, _tail(file)) as stream:
        refuse_encrypted_footer(file, stream)
        metadata = pq.read_metadata(stream)
        text_column(file, metadata.schema.to_arrow_schema(), column)
        refuse_encrypted_column(file, stream, metadata, column)
        return _describe(file, metadata, column, 0)


def _tail(file: SourceFile) -> list[Span]:
    return [(max(file.size - TAIL_BYTES, 0), file.size)]


def _describe(file: SourceFile, metadata: pq.FileMetaData, column: str, first_row: int) -> _Footer:
    text_column(file, metadata.schema.to_arrow_schema(), column)
    leaf = next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path == column)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = checked_counts("rows of each row group", [group.num_rows for group in groups])
    sizes = [group.column(leaf).total_uncompressed_size for group in groups]
    text_bytes = checked_counts("sizes of its column chunks", sizes)
    if rows.sum() != metadata.num_rows:
        raise EOFError(f"its row groups have {rows.sum():,} rows, and its footer says {metadata.num_rows:,}")
    return _Footer(metadata, leaf, first_row, rows, text_bytes)
