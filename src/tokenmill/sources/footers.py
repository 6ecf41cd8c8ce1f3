"""The footer of a Parquet file, cut down to one column and some row groups, so that they can be read without it.

FineWeb's footers have three megabytes; what reading a unit takes of one is a few hundred bytes, which the plan keeps.
The result is a footer itself, in Thrift's compact protocol (the fields are told by parquet.thrift in
apache/parquet-format), with the places of the column's pages in the file unchanged.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.parquet as pq

MAGIC = b"PAR1"
BYTE_ARRAY = 6
UTF8 = 0
CODECS = {"UNCOMPRESSED": 0, "SNAPPY": 1, "GZIP": 2, "BROTLI": 4, "ZSTD": 6}
ENCODINGS = {
    "PLAIN": 0,
    "PLAIN_DICTIONARY": 2,
    "RLE": 3,
    "BIT_PACKED": 4,
    "DELTA_BINARY_PACKED": 5,
    "DELTA_LENGTH_BYTE_ARRAY": 6,
    "DELTA_BYTE_ARRAY": 7,
    "RLE_DICTIONARY": 8,
}

_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12


def cut_down(metadata: pq.FileMetaData, leaf: int, groups: range) -> bytes | None:
    """The footer of a file that has these row groups and this column only; None if the column is of a rare kind."""
    column = metadata.schema.column(leaf)
    chunks = [metadata.row_group(group).column(leaf) for group in groups]
    plain = column.physical_type == "BYTE_ARRAY" and column.max_repetition_level == 0
    known = all(
        chunk.compression in CODECS and set(chunk.encodings) <= set(ENCODINGS) and not chunk.file_path
        for chunk in chunks
    )
    if not plain or not known or column.max_definition_level > 1:
        return None
    rows = [metadata.row_group(group).num_rows for group in groups]
    row_groups = [_row_group(chunk, count) for chunk, count in zip(chunks, rows, strict=True)]
    body = _struct(
        (1, _I32, _number(1 if metadata.format_version == "1.0" else 2)),
        (2, _LIST, _list(_STRUCT, [_root(), _leaf(column)])),
        (3, _I64, _number(sum(rows))),
        (4, _LIST, _list(_STRUCT, row_groups)),
        (6, _BINARY, _text(metadata.created_by or "")),
    )
    return body + len(body).to_bytes(4, "little") + MAGIC


def read_footer(data: bytes) -> pq.FileMetaData:
    """What `cut_down` made, as pyarrow sees it."""
    return pq.read_metadata(pa.BufferReader(MAGIC + data))


def spans(metadata: pq.FileMetaData, leaf: int, file_bytes: int) -> list[tuple[int, int]]:
    """Where the pages of a column are in a file of this size: one span for each row group."""
    found = []
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(leaf)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        stop = start + chunk.total_compressed_size
        if not 0 <= start <= stop <= file_bytes:
            raise EOFError(f"the pages of row group {group} are said to be at bytes {start:,} to {stop:,}")
        found.append((start, stop))
    return found


def _root() -> bytes:
    return _struct((4, _BINARY, _text("schema")), (5, _I32, _number(1)))


def _leaf(column: pq.ColumnSchema) -> bytes:
    is_text = column.logical_type.type == "STRING" or column.converted_type == "UTF8"
    return _struct(
        (1, _I32, _number(BYTE_ARRAY)),
        (3, _I32, _number(column.max_definition_level)),  # 0 is required, 1 is optional: the numbers agree
        (4, _BINARY, _text(column.name)),
        *([(6, _I32, _number(UTF8))] if is_text else []),
    )


def _row_group(chunk: pq.ColumnChunkMetaData, rows: int) -> bytes:
    encodings = [_number(ENCODINGS[name]) for name in chunk.encodings]
    dictionary = [(11, _I64, _number(chunk.dictionary_page_offset))] if chunk.has_dictionary_page else []
    described = _struct(
        (1, _I32, _number(BYTE_ARRAY)),
        (2, _LIST, _list(_I32, encodings)),
        (3, _LIST, _list(_BINARY, [_text(name) for name in chunk.path_in_schema.split(".")])),
        (4, _I32, _number(CODECS[chunk.compression])),
        (5, _I64, _number(chunk.num_values)),
        (6, _I64, _number(chunk.total_uncompressed_size)),
        (7, _I64, _number(chunk.total_compressed_size)),
        (9, _I64, _number(chunk.data_page_offset)),
        *dictionary,
    )
    column = _struct((2, _I64, _number(chunk.file_offset)), (3, _STRUCT, described))
    size = (2, _I64, _number(chunk.total_uncompressed_size))
    return _struct((1, _LIST, _list(_STRUCT, [column])), size, (3, _I64, _number(rows)))


def _struct(*fields: tuple[int, int, bytes]) -> bytes:
    """Fields in rising order: how far each number is from the one before, its type, its value; then the end."""
    found = bytearray()
    before = 0
    for number, kind, value in fields:
        found.append((number - before) << 4 | kind)
        found += value
        before = number
    found.append(0)
    return bytes(found)


def _list(kind: int, items: Iterable[bytes]) -> bytes:
    items = list(items)
    head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + _varint(len(items))
    return head + b"".join(items)


def _text(text: str) -> bytes:
    data = text.encode()
    return _varint(len(data)) + data


def _number(number: int) -> bytes:
    return _varint(number << 1 if number >= 0 else (-number << 1) - 1)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)
