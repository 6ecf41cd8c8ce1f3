"""Parquet: a slice is a run of row groups, a row is its number in the file. The footer tells all planning needs."""

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

# The compressed pages of a column chunk are read in pieces of this size, so a huge row group does not fill the memory.
BUFFER_BYTES = 1 << 20
# A dictionary page may repeat a value in every row, which the size of the column chunk does not show.
MAX_ROWS_PER_BATCH = 2048
TAIL_BYTES = 64 << 10
MIN_GROUP_BYTES = 16
"""A row group takes more than this in the footer of its file."""

MAX_FIRST = 1 << 62
"""What is read first of a file behind a network: most footers are shorter."""


SMALL_GAP = 0.02
"""How much more is fetched, at most, so that two row groups come with one request: what lies between them."""


@dataclass(frozen=True, slots=True)
class _Footer:
    """What is known of some row groups, the first of which begins with row `first`; all of a file, or a slice."""

    metadata: pq.FileMetaData
    leaf: int
    first: int
    rows: Int64Array
    text_bytes: Int64Array


def split(file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:
    """Runs of row groups that hold about `unit_bytes` in the column of text."""
    footer = _footer(file, options.column)
    edges = pack(footer.text_bytes, unit_bytes)
    before = np.concatenate([[0], np.cumsum(footer.rows)])
    details = [
        _detail(footer, range(start, stop), int(before[start])) for start, stop in itertools.pairwise(edges.tolist())
    ]
    known = [detail for detail in details if detail is not None]
    return Slices(
        edges[:-1],
        edges[1:],
        sums(footer.text_bytes, edges),
        sums(footer.rows, edges),
        known if len(known) == len(details) else None,
    )


def byte_ranges(file: SourceFile, file_slice: Slice | None, options: ReadOptions) -> list[Span]:
    """The column's pages, where the plan has kept where they are; else what is read first, the end of the file."""
    if file_slice is None or file_slice.detail is None:
        return _tail(file)
    footer = _kept(file, file_slice, options.column)
    return _joined(spans(footer.metadata, footer.leaf, file.size))


def read(file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
    """The rows of the row groups of the slice."""
    if file_slice.detail is not None:
        footer, groups = _kept(file, file_slice, options.column), range(file_slice.stop - file_slice.start)
    else:
        footer, groups = _footer(file, options.column), range(file_slice.start, file_slice.stop)
    first = footer.first + int(footer.rows[: groups.start].sum())
    rows = range(first, first + int(footer.rows[groups.start : groups.stop].sum()))
    yield from number_rows(file, _columns(file, footer, groups, options), rows, options)


def _columns(file: SourceFile, footer: _Footer, groups: range, options: ReadOptions) -> Iterator[pa.Array]:
    text_bytes = int(footer.text_bytes[groups.start : groups.stop].sum())
    rows = int(footer.rows[groups.start : groups.stop].sum())
    batch_rows = options.batch_bytes * rows // max(text_bytes, 1)
    expected = _joined(spans(footer.metadata, footer.leaf, file.size)[groups.start : groups.stop])
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


def _joined(found: list[Span]) -> list[Span]:
    """Spans that follow each other nearly without a gap as one, so that one request gets them."""
    joined: list[Span] = []
    for start, stop in sorted(found):
        if joined and 0 <= start - joined[-1][1] <= SMALL_GAP * (stop - joined[-1][0]):
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return joined


def _detail(footer: _Footer, groups: range, first: int) -> bytes | None:
    """What the plan keeps: the number of the first row, then the footer of these row groups."""
    kept = pack_footer(footer.metadata, footer.leaf, groups)
    return None if kept is None else first.to_bytes(8, "little") + kept


def _kept(file: SourceFile, file_slice: Slice, column: str) -> _Footer:
    """What the plan has kept of a file's footer."""
    detail, groups = file_slice.detail or b"", file_slice.stop - file_slice.start
    first = int.from_bytes(detail[:8], "little")
    if not 0 <= groups <= file.size // MIN_GROUP_BYTES or first > MAX_FIRST:
        raise EOFError(f"the plan has {groups:,} row groups of a file of {file.size:,} bytes, from row {first:,} on")
    return _described(file, read_footer(detail[8:], groups), column, first)


# Units of one file follow each other, and a footer may take megabytes: keep the last ones.
@functools.lru_cache(maxsize=2)
def _footer(file: SourceFile, column: str) -> _Footer:
    with storage.open_input(file.info, _tail(file)) as stream:
        refuse_encrypted_footer(file, stream)
        metadata = pq.read_metadata(stream)
        text_column(file, metadata.schema.to_arrow_schema(), column)
        refuse_encrypted_column(file, stream, metadata, column)
        return _described(file, metadata, column, 0)


def _tail(file: SourceFile) -> list[Span]:
    return [(max(file.size - TAIL_BYTES, 0), file.size)]


def _described(file: SourceFile, metadata: pq.FileMetaData, column: str, first: int) -> _Footer:
    text_column(file, metadata.schema.to_arrow_schema(), column)
    leaf = next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path == column)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = checked_counts("rows of each row group", [group.num_rows for group in groups])
    sizes = [group.column(leaf).total_uncompressed_size for group in groups]
    text_bytes = checked_counts("sizes of its column chunks", sizes)
    if rows.sum() != metadata.num_rows:
        raise EOFError(f"its row groups have {rows.sum():,} rows, and its footer says {metadata.num_rows:,}")
    return _Footer(metadata, leaf, first, rows, text_bytes)
