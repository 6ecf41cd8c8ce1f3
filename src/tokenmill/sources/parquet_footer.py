"""The footer of a Parquet file, cut down to one column and some row groups, so that they can be read without it.

FineWeb's footers have three megabytes; what reading a unit takes of one is a few hundred bytes, which the plan keeps:
the column once, and for each row group the numbers that tell its pages, most of them as a distance from the one before.
From them a footer is made again, in Thrift's compact protocol (the fields are told by parquet.thrift in
apache/parquet-format), with the places of the column's pages in the file unchanged.
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

_I32, _I64, _BINARY, _LIST, _STRUCT = 5, 6, 8, 9, 12


NUMBERS_OF_GROUP = 6
LARGEST = 1 << 62
MAX_BITS = 64


class PackedFooter(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A column of some row groups. A shape is the codec of a column chunk, whether it has a dictionary, its encodings.

    The numbers of each row group follow each other: its shape, its rows, the bytes of its pages unpacked and packed,
    how far its data is from the end of the row group before, and how far its dictionary is before its data.
    """

    name: str
    definition_level: int
    is_text: bool
    version: int
    created_by: str
    shapes: tuple[tuple[int, bool, tuple[int, ...]], ...]
    numbers: bytes


def pack_footer(metadata: pq.FileMetaData, leaf: int, groups: range) -> bytes | None:
    """What `read_footer` needs of these row groups and this column; None if the column is of a rare kind."""
    column = metadata.schema.column(leaf)
    described = [metadata.row_group(group) for group in groups]
    chunks = [group.column(leaf) for group in described]
    rows = [group.num_rows for group in described]
    plain = column.physical_type == "BYTE_ARRAY" and column.max_repetition_level == 0
    known = all(
        chunk.compression in CODECS
        and set(chunk.encodings) <= ENCODINGS.keys()
        and chunk.num_values == count
        and chunk.path_in_schema == column.name
        and not chunk.file_path
        for chunk, count in zip(chunks, rows, strict=True)
    )
    if not plain or not known or column.max_definition_level > 1:
        return None
    shapes = [_shape(chunk) for chunk in chunks]
    distinct = {shape: place for place, shape in enumerate(dict.fromkeys(shapes))}
    numbers = _pack(chunks, rows, [distinct[shape] for shape in shapes])
    kept = PackedFooter(
        name=column.name,
        definition_level=column.max_definition_level,
        is_text=column.logical_type.type == "STRING" or column.converted_type == "UTF8",
        version=1 if metadata.format_version == "1.0" else 2,
        created_by=metadata.created_by or "",
        shapes=tuple(distinct),
        numbers=numbers,
    )
    return msgspec.msgpack.encode(kept)


def read_footer(data: bytes, groups: int) -> pq.FileMetaData:
    """What `cut_down` kept of so many row groups, as pyarrow sees a file that has nothing else."""
    try:
        footer = _footer(_checked(msgspec.msgpack.decode(data, type=PackedFooter), groups))
    except (msgspec.MsgspecError, LookupError, ValueError) as error:
        raise MalformedDataError(f"what the plan has kept of the footer is damaged ({error})") from error
    return pq.read_metadata(pa.BufferReader(footer))


def _checked(kept: PackedFooter, groups: int) -> PackedFooter:
    """Refuse numbers of more or fewer row groups, before anything is made of them. Each ends with a byte below 128."""
    found = np.count_nonzero(np.frombuffer(kept.numbers, np.uint8) < 128)
    if found != groups * NUMBERS_OF_GROUP:
        raise ValueError(f"it has {found} numbers for {groups} row groups")
    return kept


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


def _shape(chunk: pq.ColumnChunkMetaData) -> tuple[int, bool, tuple[int, ...]]:
    encodings = tuple(ENCODINGS[name] for name in chunk.encodings)
    return CODECS[chunk.compression], chunk.has_dictionary_page, encodings


def _pack(chunks: list[pq.ColumnChunkMetaData], rows: list[int], shapes: list[int]) -> bytes:
    """The numbers of the row groups."""
    found = bytearray()
    end = 0
    for chunk, count, shape in zip(chunks, rows, shapes, strict=True):
        packed, data = chunk.total_compressed_size, chunk.data_page_offset
        dictionary = data - chunk.dictionary_page_offset if chunk.has_dictionary_page else 0
        for number in (shape, count, chunk.total_uncompressed_size, packed, data - end, dictionary):
            found += _number(number)
        end = data - dictionary + packed
    return bytes(found)


def _footer(kept: PackedFooter) -> bytes:
    """A file that has a footer and nothing else."""
    numbers = _numbers(kept.numbers)
    groups = [numbers[place : place + NUMBERS_OF_GROUP] for place in range(0, len(numbers), NUMBERS_OF_GROUP)]
    body = _struct(
        (1, _I32, _number(kept.version)),
        (2, _LIST, _list(_STRUCT, [_root(), _leaf(kept)])),
        (3, _I64, _number(sum(group[1] for group in groups))),
        (4, _LIST, _list(_STRUCT, _row_groups(kept, groups))),
        (6, _BINARY, _text(kept.created_by)),
    )
    return MAGIC + body + len(body).to_bytes(4, "little") + MAGIC


def _row_groups(kept: PackedFooter, groups: list[list[int]]) -> Iterator[bytes]:
    end = 0
    for shape, rows, unpacked, packed, distance, dictionary in groups:
        data = end + distance
        end = data - dictionary + packed
        codec, has_dictionary, encodings = kept.shapes[shape]
        described = _struct(
            (1, _I32, _number(BYTE_ARRAY)),
            (2, _LIST, _list(_I32, map(_number, encodings))),
            (3, _LIST, _list(_BINARY, [_text(kept.name)])),
            (4, _I32, _number(codec)),
            (5, _I64, _number(rows)),
            (6, _I64, _number(unpacked)),
            (7, _I64, _number(packed)),
            (9, _I64, _number(data)),
            *([(11, _I64, _number(data - dictionary))] if has_dictionary else []),
        )
        column = _struct((2, _I64, _number(0)), (3, _STRUCT, described))
        yield _struct((1, _LIST, _list(_STRUCT, [column])), (2, _I64, _number(unpacked)), (3, _I64, _number(rows)))


def _root() -> bytes:
    return _struct((4, _BINARY, _text("schema")), (5, _I32, _number(1)))


def _leaf(kept: PackedFooter) -> bytes:
    return _struct(
        (1, _I32, _number(BYTE_ARRAY)),
        (3, _I32, _number(kept.definition_level)),  # 0 is required, 1 is optional: the numbers agree
        (4, _BINARY, _text(kept.name)),
        *([(6, _I32, _number(UTF8))] if kept.is_text else []),
    )


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
    if not -LARGEST <= number <= LARGEST:
        raise MalformedDataError(f"a footer tells of {number}")
    return _varint(number << 1 if number >= 0 else (-number << 1) - 1)


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def _numbers(data: bytes) -> list[int]:
    """The numbers that `_number` wrote one after the other."""
    found = []
    number = shift = 0
    for byte in data:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            found.append(number >> 1 ^ -(number & 1))
            number = shift = 0
        elif shift >= MAX_BITS:
            raise MalformedDataError("a number has no end")
    return found
