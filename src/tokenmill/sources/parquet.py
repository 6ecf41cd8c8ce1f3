"""Parquet: a slice is a range of row groups, a row is the row number in the file. Planning reads only the footer.

A footer is read once for the units of its file. Encrypted Parquet is refused before pyarrow reads a column that it
cannot decrypt, because that crashes the process.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.sources.columnar import (
    ColumnPath,
    FindColumn,
    checked_counts,
    finder,
    number_rows,
    number_values,
    pack,
    plain_column,
    read_text,
    refuse_conversations,
    sums,
    text_column,
)
from tokenmill.sources.documents import Columns, Documents, Int64Array, ReadOptions, Slice, Slices, SourceFile, Span
from tokenmill.sources.text_columns import template_of

# Compressed pages are read in chunks of this size, so that a huge row group does not fill the memory.
BUFFER_BYTES = 1 << 20
# A dictionary page may repeat a long value in every row, which the size of the column chunk does not show.
MAX_ROWS_PER_BATCH = 2048
# The rows that are read at once to see what a file holds.
MIN_ROWS_PER_BATCH = 64
# Two row groups are fetched with one request if the gap between them is at most this fraction of the request.
MAX_GAP_FRACTION = 0.02

# The first read of a remote file fetches this much of its end: most footers are shorter.
TAIL_BYTES = 64 << 10
# Consecutive units often read the same file, and the next two are prefetched. A footer may take megabytes.
KEPT_FOOTERS = 4
# The end of a file: the length of the footer and the magic, which is PAR1 unless the footer is encrypted.
TRAILER_BYTES = 8
ENCRYPTED_MAGIC = b"PARE"
# The signature after the plain footer of a file with encrypted columns: a nonce of 12 bytes and a tag of 16 bytes.
SIGNATURE_BYTES = 28


@dataclass(frozen=True, slots=True)
class Footer:
    """The footer of a file, some columns of it, and of each row group the rows and the bytes of these columns."""

    metadata: pq.FileMetaData
    paths: tuple[ColumnPath, ...]
    rows: Int64Array
    column_bytes: Int64Array

    @property
    def leaves(self) -> list[int]:
        """The columns of the file that hold the values, in its order."""
        return sorted({leaf for path in self.paths for leaf in path.leaves})

    def row_range(self, groups: range) -> range:
        """The rows of consecutive row groups."""
        first = int(self.rows[: groups.start].sum())
        return range(first, first + int(self.rows[groups.start : groups.stop].sum()))

    def spans(self, groups: range, file_bytes: int) -> list[Span]:
        """The byte ranges of the columns' pages in row groups. Raises EOFError if one is outside of the file."""
        return [_page_span(self.metadata, group, leaf, file_bytes) for leaf in self.leaves for group in groups]


@functools.lru_cache(maxsize=KEPT_FOOTERS)
def read_footer(file: SourceFile, names: tuple[str, ...], find: FindColumn = text_column) -> Footer:
    """Read the footer of a file, and check that it has these columns, which `find` accepts and which can be read."""
    with _reading(file):
        metadata, has_encrypted = _read_metadata(file)
    schema = metadata.schema.to_arrow_schema()
    paths = tuple(find(file, schema, name) for name in names)
    if has_encrypted:
        for leaf in itertools.chain(*(path.leaves for path in paths)):  # before the metadata of a column is read
            _refuse_encrypted_column(file, metadata.schema.column(leaf).path)
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    rows = checked_counts("rows of each row group", [group.num_rows for group in groups])
    leaves = [leaf for path in paths for leaf in path.leaves]
    sizes = [sum(group.column(leaf).total_uncompressed_size for leaf in leaves) for group in groups]
    column_bytes = checked_counts("sizes of its column chunks", sizes)
    if rows.sum() != metadata.num_rows:
        raise EOFError(f"its row groups have {rows.sum():,} rows, and its footer says {metadata.num_rows:,}")
    return Footer(metadata, paths, rows, column_bytes)


def tail(file: SourceFile) -> list[Span]:
    """The end of a file, where its footer is."""
    return [(max(file.size - TAIL_BYTES, 0), file.size)]


@functools.lru_cache(maxsize=KEPT_FOOTERS)
def _reading(file: SourceFile) -> threading.Lock:  # noqa: ARG001 - one lock for each file
    """The lock of a thread that reads a footer: the thread that prefetches the next unit may need the same one."""
    return threading.Lock()


@functools.lru_cache(maxsize=KEPT_FOOTERS)
def _read_metadata(file: SourceFile) -> tuple[pq.FileMetaData, bool]:
    """Read the footer of a file, and whether some of its columns are encrypted."""
    with storage.open_input(file.info, tail(file)) as stream:
        stream.seek(max(file.size - TRAILER_BYTES, 0))
        trailer = stream.read(TRAILER_BYTES)
        if trailer[4:] == ENCRYPTED_MAGIC:
            raise _encrypted(file, "footer")
        metadata = pq.read_metadata(stream)
        signed_bytes = metadata.serialized_size + SIGNATURE_BYTES
        return metadata, int.from_bytes(trailer[:4], "little") == signed_bytes and metadata.num_row_groups > 0


def _refuse_encrypted_column(file: SourceFile, column: str) -> None:
    """Raise SourceError if this column is encrypted. Other columns of the file may be encrypted."""
    try:  # a reader raises here; reading the column's metadata would crash the process
        with storage.open_input(file.info) as stream:
            reader = pq.ParquetFile(stream, pre_buffer=False)
            next(reader.iter_batches(batch_size=1, row_groups=[0], columns=[column]), None)
    except OSError as error:
        if "decrypt" not in str(error).lower():
            raise
        raise _encrypted(file, f"column {column}") from error


def _encrypted(file: SourceFile, what: str) -> SourceError:
    return SourceError(
        "encrypted Parquet is not supported",
        f"file         {file.path}",
        f"encrypted    {what}",
        "Write a copy that is not encrypted, and use that.",
    )


def _page_span(metadata: pq.FileMetaData, group: int, leaf: int, file_bytes: int) -> Span:
    chunk = metadata.row_group(group).column(leaf)
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
        start = chunk.dictionary_page_offset
    stop = start + chunk.total_compressed_size
    if not 0 <= start <= stop <= file_bytes:
        raise EOFError(f"the pages of row group {group} are listed at bytes {start:,} to {stop:,}")
    return start, stop


def split(file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:
    """Ranges of row groups that hold about `unit_bytes` in the text column each."""
    footer = read_footer(file, template_of(options).names, finder(options))
    refuse_conversations(file, footer.paths, options)
    edges = pack(footer.column_bytes, unit_bytes)
    return Slices(edges[:-1], edges[1:], sums(footer.column_bytes, edges), sums(footer.rows, edges))


def read_start(file: SourceFile, max_rows: int, max_bytes: int) -> tuple[int, pa.Table]:
    """The number of rows, and the first ones with all columns. Of a file with encrypted columns there is no first."""
    with _reading(file):
        metadata, has_encrypted = _read_metadata(file)
    schema = metadata.schema.to_arrow_schema()
    if has_encrypted or not metadata.num_row_groups:
        return metadata.num_rows, schema.empty_table()
    batches, held_bytes = list[pa.RecordBatch](), 0
    with storage.open_input(file.info) as stream:
        reader = pq.ParquetFile(stream, metadata=metadata, pre_buffer=False, buffer_size=BUFFER_BYTES)
        for batch in reader.iter_batches(batch_size=MIN_ROWS_PER_BATCH, use_threads=False):
            batches.append(batch)
            held_bytes += batch.nbytes
            if len(batches) * MIN_ROWS_PER_BATCH >= max_rows or held_bytes >= max_bytes:
                break
    return metadata.num_rows, pa.Table.from_batches(batches, schema).slice(0, max_rows)


def byte_ranges(file: SourceFile, file_slice: Slice | None, options: ReadOptions) -> list[Span]:
    """The pages of the text in a slice, by the footer; of a whole file its end, where the footer is."""
    if file_slice is None or options.where:  # a filter decides which row groups are read
        return tail(file)
    footer = read_footer(file, template_of(options).names, finder(options))
    return _merge_spans(footer.spans(row_groups(footer, file_slice), file.size))


def read(file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
    """The rows of the row groups of the slice."""
    footer = read_footer(file, template_of(options).names, finder(options))
    for streak in _streaks(row_groups(footer, file_slice), options):
        yield from number_rows(file, _columns(file, footer, streak, options), footer.row_range(streak), options)


def row_groups(footer: Footer, file_slice: Slice | None) -> range:
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
    for streak in _streaks(row_groups(footer, file_slice), options):
        yield from number_values(file, _batches(file, footer, streak), footer.row_range(streak), paths)


def _batches(
    file: SourceFile, footer: Footer, groups: range, batch_rows: int = MAX_ROWS_PER_BATCH
) -> Iterator[pa.RecordBatch]:
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
            columns=[footer.metadata.schema.column(leaf).path for leaf in footer.leaves],
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
