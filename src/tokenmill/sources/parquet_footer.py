"""Read the footer of a Parquet file: its row groups, and where the pages of some columns are.

Encrypted Parquet is refused before pyarrow reads a column that it cannot decrypt, because that crashes the process.
"""

from __future__ import annotations

import functools
import threading
from dataclasses import dataclass

import pyarrow.parquet as pq

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.sources.columnar import ColumnPath, FindColumn, checked_counts, text_column
from tokenmill.sources.documents import Int64Array, SourceFile, Span

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

    def row_range(self, groups: range) -> range:
        """The rows of consecutive row groups."""
        first = int(self.rows[: groups.start].sum())
        return range(first, first + int(self.rows[groups.start : groups.stop].sum()))

    def spans(self, groups: range, file_bytes: int) -> list[Span]:
        """The byte ranges of the columns' pages in row groups. Raises EOFError if one is outside of the file."""
        return [
            _page_span(self.metadata, group, leaf, file_bytes)
            for leaf in sorted({path.leaf for path in self.paths})
            for group in groups
        ]


@functools.lru_cache(maxsize=KEPT_FOOTERS)
def read_footer(file: SourceFile, names: tuple[str, ...], find: FindColumn = text_column) -> Footer:
    """Read the footer of a file, and check that it has these columns, which `find` accepts and which can be read."""
    with _reading(file):
        metadata, has_encrypted = _read_metadata(file)
    schema = metadata.schema.to_arrow_schema()
    paths = tuple(find(file, schema, name) for name in names)
    if has_encrypted:
        for path in paths:  # before the metadata of a column is read
            _refuse_encrypted_column(file, metadata.schema.column(path.leaf).path)
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    rows = checked_counts("rows of each row group", [group.num_rows for group in groups])
    sizes = [sum(group.column(path.leaf).total_uncompressed_size for path in paths) for group in groups]
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
