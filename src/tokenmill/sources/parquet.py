"""Parquet: a slice is a run of row groups, a row is its number in the file. The footer tells all planning needs."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill import storage
from tokenmill.sources.documents import Documents, Int64Array, ReadOptions, Slices, SourceFile
from tokenmill.sources.tables import figures, number_rows, pack, sums, text_column

# The compressed pages of a column chunk are read in pieces of this size, so a huge row group does not fill the memory.
BUFFER_BYTES = 1 << 20
# A dictionary page may repeat a value in every row, which the size of the column chunk does not show.
MOST_ROWS_AT_ONCE = 2048


@dataclass(frozen=True, slots=True)
class _Footer:
    metadata: pq.FileMetaData
    rows: Int64Array
    text_bytes: Int64Array


def split(file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:
    """Runs of row groups that hold about `unit_bytes` in the column of text."""
    footer = _footer(file, options.column)
    edges = pack(footer.text_bytes, unit_bytes)
    return Slices(edges[:-1], edges[1:], sums(footer.text_bytes, edges), sums(footer.rows, edges))


def read(file: SourceFile, start: int, stop: int, options: ReadOptions) -> Iterator[Documents]:
    """The rows of the row groups [start, stop)."""
    footer = _footer(file, options.column)
    first = int(footer.rows[:start].sum())
    rows = range(first, first + int(footer.rows[start:stop].sum()))
    yield from number_rows(file, _columns(file, footer, range(start, stop), options), rows, options)


def _columns(file: SourceFile, footer: _Footer, groups: range, options: ReadOptions) -> Iterator[pa.Array]:
    text_bytes = int(footer.text_bytes[groups.start : groups.stop].sum())
    rows = int(footer.rows[groups.start : groups.stop].sum())
    batch_rows = options.batch_bytes * rows // max(text_bytes, 1)
    with storage.open_input(file.path) as stream:
        reader = pq.ParquetFile(
            stream,
            metadata=footer.metadata,
            pre_buffer=False,
            buffer_size=BUFFER_BYTES,
            page_checksum_verification=True,
        )
        for batch in reader.iter_batches(
            batch_size=min(max(batch_rows, 1), MOST_ROWS_AT_ONCE),
            row_groups=list(groups),
            columns=[options.column],
            use_threads=False,
        ):
            yield batch.column(0)


# Units of one file follow each other, and a footer may take megabytes: keep the last ones.
@functools.lru_cache(maxsize=2)
def _footer(file: SourceFile, column: str) -> _Footer:
    with storage.open_input(file.path) as stream:
        metadata = pq.read_metadata(stream)
    text_column(file, metadata.schema.to_arrow_schema(), column)
    leaf = next(i for i in range(metadata.num_columns) if metadata.schema.column(i).path == column)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = figures("rows of each row group", [group.num_rows for group in groups])
    sizes = [group.column(leaf).total_uncompressed_size for group in groups]
    text_bytes = figures("sizes of its column chunks", sizes)
    if rows.sum() != metadata.num_rows:
        raise EOFError(f"its row groups have {rows.sum():,} rows, and its footer says {metadata.num_rows:,}")
    return _Footer(metadata, rows, text_bytes)
