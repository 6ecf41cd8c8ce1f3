"""Read the footer of a Parquet file: its row groups, and where the pages of the text column are."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import pyarrow.parquet as pq

from tokenmill import storage
from tokenmill.sources.columnar import ColumnPath, checked_counts, plain_column, text_column
from tokenmill.sources.documents import Int64Array, Slice, SourceFile, Span
from tokenmill.sources.packed_footer import pack_footer, unpack_footer
from tokenmill.sources.parquet_encryption import refuse_encrypted_column, refuse_encrypted_footer

# The first read of a remote file fetches this much of its end: most footers are shorter.
TAIL_BYTES = 64 << 10
# A row group takes more than this in a footer, so the file size limits the number of row groups.
MIN_GROUP_BYTES = 16
# Sanity limit for a row number that is read from the plan.
MAX_FIRST_ROW = 1 << 62


@dataclass(frozen=True, slots=True)
class Footer:
    """The row groups of a file or of a slice; the first of them starts at row `first_row` of the file."""

    metadata: pq.FileMetaData
    paths: tuple[ColumnPath, ...]
    first_row: int
    rows: Int64Array
    text_bytes: Int64Array


def pack_detail(footer: Footer, groups: range, first_row: int) -> bytes | None:
    """The `Slice.detail` that goes into the plan: the first row number, then the packed footer of the row groups."""
    packed = pack_footer(footer.metadata, footer.paths[0].leaf, groups) if len(footer.paths) == 1 else None
    return None if packed is None else first_row.to_bytes(8, "little") + packed


def footer_from_plan(file: SourceFile, file_slice: Slice, names: tuple[str, ...]) -> Footer:
    """The footer of a slice, restored from `Slice.detail`."""
    detail, groups = file_slice.detail or b"", file_slice.stop - file_slice.start
    first = int.from_bytes(detail[:8], "little")
    if not 0 <= groups <= file.size // MIN_GROUP_BYTES or first > MAX_FIRST_ROW:
        raise EOFError(f"the plan has {groups:,} row groups of a file of {file.size:,} bytes, from row {first:,} on")
    return _describe(file, unpack_footer(detail[8:], groups), names, first)


# Consecutive units often read the same file. Only two footers are kept, because one may take megabytes.
@functools.lru_cache(maxsize=2)
def read_footer(file: SourceFile, names: tuple[str, ...]) -> Footer:
    """Read the footer of a file, and check that these columns hold text that can be read."""
    with storage.open_input(file.info, tail(file)) as stream:
        refuse_encrypted_footer(file, stream)
        metadata = pq.read_metadata(stream)
        for name in names:  # before the metadata of a column is read
            leaf = text_column(file, metadata.schema.to_arrow_schema(), name).leaf
            refuse_encrypted_column(file, stream, metadata, metadata.schema.column(leaf).path)
        return _describe(file, metadata, names, 0)


@functools.lru_cache(maxsize=2)
def read_metadata(file: SourceFile, names: tuple[str, ...]) -> pq.FileMetaData:
    """Read the footer of a file, and check that it has these columns, with plain values that can be read."""
    with storage.open_input(file.info, tail(file)) as stream:
        refuse_encrypted_footer(file, stream)
        metadata = pq.read_metadata(stream)
        for name in names:
            leaf = plain_column(file, metadata.schema.to_arrow_schema(), name).leaf
            refuse_encrypted_column(file, stream, metadata, metadata.schema.column(leaf).path)
        checked_counts("rows of each row group", _row_counts(metadata))
        return metadata


def _row_counts(metadata: pq.FileMetaData) -> list[int]:
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


def tail(file: SourceFile) -> list[Span]:
    """The end of a file, where its footer is."""
    return [(max(file.size - TAIL_BYTES, 0), file.size)]


def _describe(file: SourceFile, metadata: pq.FileMetaData, names: tuple[str, ...], first_row: int) -> Footer:
    schema = metadata.schema.to_arrow_schema()
    paths = tuple(text_column(file, schema, name) for name in names)
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    rows = checked_counts("rows of each row group", [group.num_rows for group in groups])
    sizes = [sum(group.column(path.leaf).total_uncompressed_size for path in paths) for group in groups]
    text_bytes = checked_counts("sizes of its column chunks", sizes)
    if rows.sum() != metadata.num_rows:
        raise EOFError(f"its row groups have {rows.sum():,} rows, and its footer says {metadata.num_rows:,}")
    return Footer(metadata, paths, first_row, rows, text_bytes)
