"""Read Parquet from files that another user may have written: a few bytes can announce a terabyte.

The footer gives the position of each column, and the header of each page its unpacked size. pyarrow believes both, and
some footers make it abort the process. So this module reads them first, strictly: it refuses what the writers of
tokenmill's own files would not write. Its own memory is bounded by the number of values that it reads. The columns,
their types and the sizes of their values are compared with the file before they are used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.storage.untrusted.tables import ARROW_ERRORS, describe

FACTOR = 64  # memory of a table per byte of its file; the tables of tokenmill take less than 30
SPARE = 1 << 20  # allowed on top of that, in bytes, values and rows: small files have no meaningful factor

_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
_DATA_PAGE, _DATA_PAGE_V2 = 0, 3
_PLAIN = 0
_MAX_DEPTH = 10
# The largest footers that tokenmill writes have less than a megabyte.
_MAX_FOOTER_BYTES = 4 << 20
# A value takes up to 200 bytes of memory, and an empty structure one byte of a footer.
_MAX_FOOTER_VALUES = 1 << 20
# The header of a page has about 20 values. It has no stated length: it may go on to the end of its column.
_MAX_PAGE_VALUES = 1000
_MAGIC = b"PAR1"

Fields = dict[int, tuple[int, Any]]  # field number -> type and value


@dataclass(frozen=True, slots=True)
class RowGroup:
    """A row group: its rows, and for each column the offset, the size in bytes, and the number of values."""

    rows: int
    columns: list[tuple[int, int, int]]


@dataclass(frozen=True, slots=True)
class UnpackedSize:
    """The size of a file's pages: their unpacked bytes, and the values of the column with the most values.

    `plain_columns` are the columns, by number, whose values are all written one after the other. The values of the
    others may take more memory than their pages, because a page may name one long value many times.
    """

    unpacked_bytes: int
    max_values: int
    plain_columns: frozenset[int]


def read_parquet(
    data: pa.Buffer,
    schema: pa.Schema | tuple[pa.Schema, ...] | None = None,
    optional: Collection[str] | None = (),
    wanted: Collection[str] | None = None,
    extra_bytes: int = 0,
) -> pa.Table:
    """Read a Parquet table. Raises MalformedDataError for anything unexpected.

    Args:
        data: The file.
        schema: The columns it must have, if they are known; or several schemas, of which it has one.
        optional: The columns that may contain nulls. None stands for all.
        wanted: The columns to read; all by default.
        extra_bytes: The memory that the table may take beyond what its file's size allows.
    """
    groups = read_groups(data)
    unpacked = count_pages(data, groups)
    limit = FACTOR * data.size + SPARE + extra_bytes
    if max(unpacked.unpacked_bytes, unpacked.max_values, sum(group.rows for group in groups)) > limit:
        raise MalformedDataError(
            f"{data.size} bytes would become {unpacked.unpacked_bytes} bytes and {unpacked.max_values} values"
        )
    try:
        reader = pq.ParquetFile(pa.BufferReader(data))
        columns = reader.schema_arrow
        schemas = (schema,) if isinstance(schema, pa.Schema) else schema
        if schemas is not None and not any(columns.equals(each) for each in schemas):
            raise MalformedDataError(f"its columns are {describe(columns)}; expected {describe(schemas[0])}")
        columns = pa.schema([field for field in columns if wanted is None or field.name in wanted], columns.metadata)
        tables = list(_read_groups(data, _packed_texts(reader.schema, unpacked), columns, limit))
        table = pa.concat_tables(tables) if tables else columns.empty_table()
        table.validate(full=True)
    except ARROW_ERRORS as error:
        raise MalformedDataError(str(error)) from error
    for name in set(columns.names) - set(columns.names if optional is None else optional):
        if table[name].null_count:
            raise MalformedDataError(f"{name} has no value in some row")
    return table


def count_rows(tail: pa.Buffer, file_bytes: int) -> int:
    """The number of rows in a Parquet footer. Raises MalformedDataError if a file of this size cannot have them."""
    rows = sum(group.rows for group in read_groups(tail))
    if rows > FACTOR * file_bytes + SPARE:
        raise MalformedDataError(f"it cannot hold {rows} rows in {file_bytes} bytes")
    return rows


def _packed_texts(schema: pq.ParquetSchema, unpacked: UnpackedSize) -> list[str]:
    """The columns of texts that may be larger than their pages: they are read as dictionaries first."""
    leaves = [schema.column(index) for index in range(len(schema)) if index not in unpacked.plain_columns]
    return [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]


def _read_groups(data: pa.Buffer, texts: list[str], columns: pa.Schema, max_bytes: int) -> Iterator[pa.Table]:
    """The row groups, one at a time: each is in memory twice while the dictionaries of `texts` are expanded."""
    reader = pq.ParquetFile(pa.BufferReader(data), read_dictionary=texts, pre_buffer=False)
    for group in range(reader.num_row_groups):
        packed = reader.read_row_group(group, columns.names, use_threads=False)  # each distinct text once
        size = sum(_text_bytes(chunk) for column in packed.columns for chunk in column.chunks)
        if size > max_bytes:
            raise MalformedDataError(f"its texts would take {size} bytes")
        max_bytes -= size
        yield packed.cast(columns)


def _text_bytes(array: pa.Array) -> int:
    """The bytes of the texts of a column, or of the columns in it, once each row has its own."""
    if pa.types.is_list(array.type):
        return _text_bytes(array.values)
    if pa.types.is_struct(array.type):
        return sum(_text_bytes(array.field(index)) for index in range(array.type.num_fields))
    if not pa.types.is_dictionary(array.type):
        return 0
    array.validate(full=True)
    lengths = pc.binary_length(array.dictionary).cast(pa.int64()).take(array.indices)
    return pc.sum(lengths).as_py() or 0


def read_groups(data: pa.Buffer) -> list[RowGroup]:
    """The row groups in the footer of a Parquet file. Raises MalformedDataError if it is not one."""
    view = memoryview(data).cast("B")
    size = int.from_bytes(view[-8:-4], "little")
    if len(view) < 12 or view[-4:] != _MAGIC or size > len(view) - 12:
        raise MalformedDataError("it is not a Parquet file")
    if size > _MAX_FOOTER_BYTES:
        raise MalformedDataError(f"its footer has {size} bytes, at most {_MAX_FOOTER_BYTES} expected")
    footer = _ThriftReader(view[len(view) - 8 - size : -8], _MAX_FOOTER_VALUES).struct()
    groups = [_group(_fields(group)) for group in _get(footer, 4, _LIST)]
    if sum(group.rows for group in groups) != _get(footer, 3, _I64):
        raise MalformedDataError("its row groups do not have its rows")
    return groups


def count_pages(data: pa.Buffer, groups: Sequence[RowGroup]) -> UnpackedSize:
    """Read the header of every page. Raises MalformedDataError if they contradict the footer."""
    view = memoryview(data).cast("B")
    if sum(size for group in groups for _, size, _ in group.columns) > len(view):
        raise MalformedDataError("its columns overlap")
    unpacked = max_values = 0
    packed_columns: set[int] = set()
    for group in groups:
        for number, (start, size, values) in enumerate(group.columns):
            if not values:  # pyarrow reads no page then, and writers give no offset
                continue
            column_bytes, column_values, is_plain = _count_column(view, start, start + size)
            if column_values != values:
                raise MalformedDataError(f"a column has {column_values} values, {values} announced")
            unpacked += column_bytes
            packed_columns |= set() if is_plain else {number}
    for columns in zip(*(group.columns for group in groups), strict=False):
        max_values = max(max_values, sum(values for _, _, values in columns))
    columns_in_all = min((len(group.columns) for group in groups), default=0)
    return UnpackedSize(unpacked, max_values, frozenset(range(columns_in_all)) - packed_columns)


def _group(group: Fields) -> RowGroup:
    columns = []
    for chunk in _get(group, 1, _LIST):
        column = _fields(_get(_fields(chunk), 3, _STRUCT))
        start = _get(column, 9, _I64)
        if 11 in column:  # the dictionary, if there is one, precedes the data
            start = min(start, _get(column, 11, _I64) or start)
        columns.append((start, _get(column, 7, _I64), _get(column, 5, _I64)))
    return RowGroup(_get(group, 3, _I64), columns)


def _count_column(view: memoryview, start: int, stop: int) -> tuple[int, int, bool]:
    """The unpacked bytes and the values of one column of a row group, and whether its pages are plain.

    Its pages must fill it.
    """
    if not 0 < start <= stop <= len(view):
        raise MalformedDataError("a column is not inside the file")
    unpacked = values = 0
    is_plain = True
    while start < stop:
        reader = _ThriftReader(view[start:stop], _MAX_PAGE_VALUES)
        page = reader.struct()
        unpacked += _get(page, 2, _I32)
        start += reader.position + _get(page, 3, _I32)
        values += sum(_get(_get(page, field, _STRUCT), 1, _I32) for field in (5, 8) if field in page)
        is_plain = is_plain and _is_plain(page)
    if start != stop:
        raise MalformedDataError("the pages of a column do not fill it")
    return unpacked, values, is_plain


def _is_plain(page: Fields) -> bool:
    """Whether this is a data page, of version 1 or 2, whose values are written one after the other."""
    kind = _get(page, 1, _I32)
    header, encoding = {_DATA_PAGE: (5, 2), _DATA_PAGE_V2: (8, 4)}.get(kind, (0, 0))
    is_only_header = [field for field in (5, 7, 8) if field in page] == [header]
    return is_only_header and bool(_get(_get(page, header, _STRUCT), encoding, _I32) == _PLAIN)


def _get(fields: Fields, field: int, kind: int) -> Any:
    """The value of a field of this type. Numbers must not be negative."""
    actual_kind, value = fields.get(field, (0, None))
    if actual_kind != kind or (isinstance(value, int) and value < 0):
        raise MalformedDataError("its footer or the header of a page lacks a field")
    return value


def _fields(value: Any) -> Fields:
    if not isinstance(value, dict):
        raise MalformedDataError("its footer has a list of something else")
    return value


class _ThriftReader:
    """Reads one structure of at most `max_values` values in Thrift's compact protocol. `position` is its end."""

    def __init__(self, view: memoryview, max_values: int) -> None:
        self._view = view
        self._values_left = max_values
        self.position = 0

    def struct(self, depth: int = 0) -> Fields:
        """The fields. Their numbers must rise: readers disagree about a field that occurs twice."""
        if depth > _MAX_DEPTH:
            raise MalformedDataError("its footer or the header of a page is too deep")
        fields: Fields = {}
        field = 0
        while byte := self._byte():
            if not byte >> 4:
                raise MalformedDataError("its footer or the header of a page has fields in no order")
            self._expect_values(1)
            field += byte >> 4
            fields[field] = (byte & 15, self._value(byte & 15, depth))
        return fields

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (_I16, _I32, _I64):
            number = self._varint()
            return number >> 1 ^ -(number & 1)
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind == _LIST:
            return self._list(depth + 1)
        if kind in (_BINARY, _DOUBLE, _BYTE):
            size = self._varint() if kind == _BINARY else 8 if kind == _DOUBLE else 1
            self.position += size
        elif kind not in (_TRUE, _FALSE):
            raise MalformedDataError("its footer or the header of a page has a field of no type")
        return None

    def _list(self, depth: int) -> list[Any]:
        byte = self._byte()
        count = byte >> 4 if byte >> 4 < 15 else self._varint()
        if count > len(self._view) - self.position:
            raise MalformedDataError("its footer has a list that is longer than itself")
        self._expect_values(count)
        kind = _BYTE if byte & 15 in (_TRUE, _FALSE) else byte & 15
        return [self._value(kind, depth) for _ in range(count)]

    def _expect_values(self, count: int) -> None:
        self._values_left -= count
        if self._values_left < 0:
            raise MalformedDataError("its footer or the header of a page has too many values")

    def _byte(self) -> int:
        if self.position >= len(self._view):
            raise MalformedDataError("its footer or the header of a page has no end")
        self.position += 1
        return self._view[self.position - 1]

    def _varint(self) -> int:
        number = 0
        for shift in range(0, 64, 7):
            byte = self._byte()
            number |= (byte & 127) << shift
            if byte < 128:
                return number
        raise MalformedDataError("its footer or the header of a page has a number without end")
