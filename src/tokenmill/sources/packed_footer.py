"""Pack the footer of a Parquet file down to one column and some row groups, and build a footer from that again.

A footer of FineWeb has three megabytes, but reading a unit needs only a few hundred bytes of it. The plan stores these:
the column once, and for each row group the numbers that locate its pages, mostly as differences from the row group
before. `unpack_footer` builds a footer from them in Thrift's compact protocol (the fields are defined by parquet.thrift
in apache/parquet-format). The offsets of the column's pages in the file do not change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.storage.untrusted.malformed import MalformedDataError

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

# Type codes of the compact protocol.
_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12

NUMBERS_PER_GROUP = 6
MAX_NUMBER = 1 << 62
MAX_BITS = 64


class PackedFooter(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One column of some row groups.

    A shape is the codec of a column chunk, whether it has a dictionary, and its encodings. `numbers` holds six numbers
    per row group: the index of its shape, its rows, the uncompressed and the compressed bytes of its pages, the
    distance of its data from the end of the row group before, and the distance from its dictionary to its data.
    """

    name: str
    definition_level: int
    is_text: bool
    version: int
    created_by: str
    shapes: tuple[tuple[int, bool, tuple[int, ...]], ...]
    numbers: bytes


def pack_footer(metadata: pq.FileMetaData, leaf: int, groups: range) -> bytes | None:
    """What `unpack_footer` needs of these row groups and column; None if the column has a rare type or encoding."""
    column = metadata.schema.column(leaf)
    row_groups = [metadata.row_group(group) for group in groups]
    chunks = [group.column(leaf) for group in row_groups]
    rows = [group.num_rows for group in row_groups]
    is_plain = column.physical_type == "BYTE_ARRAY" and column.max_repetition_level == 0
    is_supported = all(
        chunk.compression in CODECS
        and set(chunk.encodings) <= ENCODINGS.keys()
        and chunk.num_values == count
        and chunk.path_in_schema == column.name
        and not chunk.file_path
        for chunk, count in zip(chunks, rows, strict=True)
    )
    if not is_plain or not is_supported or column.max_definition_level > 1:
        return None
    shapes = [_shape(chunk) for chunk in chunks]
    distinct = {shape: index for index, shape in enumerate(dict.fromkeys(shapes))}
    packed = PackedFooter(
        name=column.name,
        definition_level=column.max_definition_level,
        is_text=column.logical_type.type == "STRING" or column.converted_type == "UTF8",
        version=1 if metadata.format_version == "1.0" else 2,
        created_by=metadata.created_by or "",
        shapes=tuple(distinct),
        numbers=_pack_numbers(chunks, rows, [distinct[shape] for shape in shapes]),
    )
    return msgspec.msgpack.encode(packed)


def unpack_footer(data: bytes, groups: int) -> pq.FileMetaData:
    """The metadata that `pack_footer` packed, which must have this many row groups."""
    try:
        footer = _build_footer(_checked(msgspec.msgpack.decode(data, type=PackedFooter), groups))
    except (msgspec.MsgspecError, LookupError, ValueError) as error:
        raise MalformedDataError(f"the footer in the plan is damaged ({error})") from error
    return pq.read_metadata(pa.BufferReader(footer))


def _checked(packed: PackedFooter, groups: int) -> PackedFooter:
    """Raise ValueError if `numbers` does not fit the number of row groups, before anything is allocated for them."""
    count = np.count_nonzero(np.frombuffer(packed.numbers, np.uint8) < 128)  # the last byte of each number is below 128
    if count != groups * NUMBERS_PER_GROUP:
        raise ValueError(f"it has {count} numbers for {groups} row groups")
    return packed


def spans(metadata: pq.FileMetaData, leaf: int, file_bytes: int) -> list[tuple[int, int]]:
    """The byte range of a column's pages in each row group. Raises EOFError if one is outside of the file."""
    page_spans = []
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(leaf)
        start = chunk.data_page_offset
        if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < start:
            start = chunk.dictionary_page_offset
        stop = start + chunk.total_compressed_size
        if not 0 <= start <= stop <= file_bytes:
            raise EOFError(f"the pages of row group {group} are listed at bytes {start:,} to {stop:,}")
        page_spans.append((start, stop))
    return page_spans


def _shape(chunk: pq.ColumnChunkMetaData) -> tuple[int, bool, tuple[int, ...]]:
    encodings = tuple(ENCODINGS[name] for name in chunk.encodings)
    return CODECS[chunk.compression], chunk.has_dictionary_page, encodings


def _pack_numbers(chunks: list[pq.ColumnChunkMetaData], rows: list[int], shapes: list[int]) -> bytes:
    """The value of `PackedFooter.numbers`."""
    data = bytearray()
    end = 0
    for chunk, count, shape in zip(chunks, rows, shapes, strict=True):
        compressed, data_offset = chunk.total_compressed_size, chunk.data_page_offset
        dictionary = data_offset - chunk.dictionary_page_offset if chunk.has_dictionary_page else 0
        for number in (shape, count, chunk.total_uncompressed_size, compressed, data_offset - end, dictionary):
            data += _encode_number(number)
        end = data_offset - dictionary + compressed
    return bytes(data)


def _build_footer(packed: PackedFooter) -> bytes:
    """A Parquet file that consists of a footer only."""
    numbers = _decode_numbers(packed.numbers)
    groups = [numbers[first : first + NUMBERS_PER_GROUP] for first in range(0, len(numbers), NUMBERS_PER_GROUP)]
    root = _encode_struct((4, _BINARY, _encode_text("schema")), (5, _I32, _encode_number(1)))
    leaf = _encode_struct(
        (1, _I32, _encode_number(BYTE_ARRAY)),
        (3, _I32, _encode_number(packed.definition_level)),  # the same numbers: 0 is required, 1 is optional
        (4, _BINARY, _encode_text(packed.name)),
        *([(6, _I32, _encode_number(UTF8))] if packed.is_text else []),
    )
    body = _encode_struct(
        (1, _I32, _encode_number(packed.version)),
        (2, _LIST, _encode_list(_STRUCT, [root, leaf])),
        (3, _I64, _encode_number(sum(group[1] for group in groups))),
        (4, _LIST, _encode_list(_STRUCT, _row_groups(packed, groups))),
        (6, _BINARY, _encode_text(packed.created_by)),
    )
    return MAGIC + body + len(body).to_bytes(4, "little") + MAGIC


def _row_groups(packed: PackedFooter, groups: list[list[int]]) -> Iterator[bytes]:
    end = 0
    for shape, rows, uncompressed, compressed, distance, dictionary in groups:
        data_offset = end + distance
        end = data_offset - dictionary + compressed
        codec, has_dictionary, encodings = packed.shapes[shape]
        chunk = _encode_struct(
            (1, _I32, _encode_number(BYTE_ARRAY)),
            (2, _LIST, _encode_list(_I32, map(_encode_number, encodings))),
            (3, _LIST, _encode_list(_BINARY, [_encode_text(packed.name)])),
            (4, _I32, _encode_number(codec)),
            (5, _I64, _encode_number(rows)),
            (6, _I64, _encode_number(uncompressed)),
            (7, _I64, _encode_number(compressed)),
            (9, _I64, _encode_number(data_offset)),
            *([(11, _I64, _encode_number(data_offset - dictionary))] if has_dictionary else []),
        )
        column = _encode_struct((2, _I64, _encode_number(0)), (3, _STRUCT, chunk))
        yield _encode_struct(
            (1, _LIST, _encode_list(_STRUCT, [column])),
            (2, _I64, _encode_number(uncompressed)),
            (3, _I64, _encode_number(rows)),
        )


def _encode_struct(*fields: tuple[int, int, bytes]) -> bytes:
    """Fields in rising order. Each is written as the difference to the field number before, its type and its value."""
    data = bytearray()
    before = 0
    for number, kind, value in fields:
        data.append((number - before) << 4 | kind)
        data += value
        before = number
    data.append(0)
    return bytes(data)


def _encode_list(kind: int, items: Iterable[bytes]) -> bytes:
    items = list(items)
    head = bytes([len(items) << 4 | kind]) if len(items) < 15 else bytes([0xF0 | kind]) + _varint(len(items))
    return head + b"".join(items)


def _encode_text(text: str) -> bytes:
    data = text.encode()
    return _varint(len(data)) + data


def _encode_number(number: int) -> bytes:
    """A zigzag varint."""
    if not -MAX_NUMBER <= number <= MAX_NUMBER:
        raise MalformedDataError(f"a footer has the number {number}")
    return _varint(number << 1 if number >= 0 else (-number << 1) - 1)


def _varint(number: int) -> bytes:
    data = bytearray()
    while number > 0x7F:
        data.append(number & 0x7F | 0x80)
        number >>= 7
    data.append(number)
    return bytes(data)


def _decode_numbers(data: bytes) -> list[int]:
    """The numbers that `_encode_number` wrote in sequence."""
    numbers = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            numbers.append(number >> 1 ^ -(number & 1))
            number = shift = 0
        elif shift >= MAX_BITS:
            raise MalformedDataError("a number has no end")
    return numbers
