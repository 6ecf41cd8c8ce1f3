"""JSON Lines, plain or compressed: one object per line, of which one key is the text. A row is the line's first byte.

Blocks of whole lines go through pyarrow's parser. What it refuses (a lone surrogate, a key given twice, a number beyond
a double) is read again line by line with Python's, so that what becomes of a line depends on that line alone.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json

from tokenmill.sources.bad_rows import NOT_AN_OBJECT, NOT_TEXT, bad_row, split_valid
from tokenmill.sources.delimited import Block, reach_of, read_pieces, split_bytes
from tokenmill.sources.documents import (
    BadRow,
    Documents,
    ReadOptions,
    RowArray,
    Slice,
    Slices,
    SourceFile,
    Span,
    as_text,
)
from tokenmill.sources.missing_column import BYTE_ORDER_MARK, WHITE_SPACE, ColumnSearch

SEPARATOR = b"\n"
LONGEST_BLOCK = 2**31 - 2  # pyarrow counts the bytes of a block in 32 bits


def split(file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:  # noqa: ARG001 - the protocol's signature
    """Byte ranges, which own the lines that start in them; one for a compressed file."""
    return split_bytes(file, unit_bytes)


def byte_ranges(file: SourceFile, file_slice: Slice | None, options: ReadOptions) -> list[Span]:  # noqa: ARG001 - the protocol
    """The range itself, and some of the line that goes on after it."""
    return reach_of(file, file_slice, SEPARATOR)


def read(file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
    """The documents of the lines that start in the bytes of the slice."""
    blocks = read_pieces(file, file_slice, SEPARATOR, options)
    search = ColumnSearch(options.column, is_over=file_slice.start > 0)
    documents_of = functools.partial(_documents, file, options, search)
    for documents in map(documents_of, blocks):  # a name for the block would keep its memory
        if len(documents.rows) or documents.bad:
            yield documents
    missing = search.missing(file, is_all=True)
    if missing is not None:
        raise missing


def _documents(file: SourceFile, options: ReadOptions, search: ColumnSearch, block: Block) -> Documents:
    if block.bad:
        nothing = Documents(pa.array([], pa.large_string()), np.empty(0, np.uint64), block.bad)
        return split_valid(file, nothing, options)
    lines = _Lines(_without_mark(block))
    bad: list[BadRow] = []
    text = _parse_block(lines, options.column)
    if text is None:
        text, bad = _parse_lines(lines, options.column)
    search.is_over |= text.null_count < len(text)
    search.look(lines)
    return split_valid(file, Documents(as_text(text), lines.rows, tuple(bad)), options, lines.raw)


class _Lines:
    """The lines of a block that are not blank: where they are, and whether each looks like an object."""

    def __init__(self, block: Block) -> None:
        regular = _looks_regular(block)
        kept = np.ones(len(regular), dtype=bool)
        self.are_objects = True
        for index in np.flatnonzero(~regular).tolist():
            line = block.data[block.start[index] : block.stop[index]].strip(WHITE_SPACE)
            kept[index] = bool(line)
            self.are_objects &= not line or (line[:1] == b"{" and line[-1:] == b"}")
        self.data = block.data
        self.start = block.start[kept]
        self.stop = block.stop[kept]
        self.rows: RowArray = (self.start + block.offset).astype(np.uint64)

    def __iter__(self) -> Iterator[bytearray]:
        for start, stop in zip(self.start.tolist(), self.stop.tolist(), strict=True):
            yield self.data[start:stop].strip(WHITE_SPACE)

    def raw(self, position: int) -> bytearray:
        """A line as it stands in the file, without the line end."""
        return self.data[self.start[position] : self.stop[position]]

    def leave_out(self, positions: list[int]) -> None:
        """Forget some lines."""
        kept = np.ones(len(self.rows), dtype=bool)
        kept[positions] = False
        self.start, self.stop, self.rows = self.start[kept], self.stop[kept], self.rows[kept]


def _without_mark(block: Block) -> Block:
    marked = block.offset == 0 and block.data.startswith(BYTE_ORDER_MARK)
    if not marked:
        return block
    start = block.start.copy()
    start[0] = len(BYTE_ORDER_MARK)
    return Block(block.offset, block.data, start, block.stop)


def _looks_regular(block: Block) -> npt.NDArray[np.bool_]:
    """Whether a line starts with `{` and ends with `}` or `}` and a carriage return."""
    data = np.frombuffer(block.data, dtype=np.uint8)
    first = data[np.minimum(block.start, len(data) - 1)]
    last = data[np.maximum(block.stop - 1, 0)]
    before = data[np.maximum(block.stop - 2, 0)]
    closed = (last == ord("}")) | ((last == ord("\r")) & (before == ord("}")))
    return np.asarray((first == ord("{")) & closed & (block.stop - block.start >= 2))


def _parse_block(lines: _Lines, column: str) -> pa.LargeStringArray | None:
    """The column of all lines, or None where pyarrow refuses a line or does not find one object in each.

    Every line must begin with `{` and end with `}`: a line end between them cannot lie inside an object, so as many
    objects as lines are one in each. (pyarrow 26 also dies of a block that begins with a bare `null`.)
    """
    if not lines.are_objects or len(lines.data) > LONGEST_BLOCK:
        return None
    try:
        text = _parse(lines.data, column)
    except pa.ArrowInvalid:
        return None
    return text if len(text) == len(lines.rows) else None


def _parse(data: bytearray, column: str) -> pa.LargeStringArray:
    table = pa.json.read_json(
        pa.BufferReader(data),
        read_options=pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pa.json.ParseOptions(
            explicit_schema=pa.schema([(column, pa.large_string())]), unexpected_field_behavior="ignore"
        ),
    )
    return table.column(0).combine_chunks()


def _parse_lines(lines: _Lines, column: str) -> tuple[pa.LargeBinaryArray, list[BadRow]]:
    """The values of the lines that have one or null, and the other lines, which are no longer among `lines`."""
    values: list[bytes | None] = []
    bad: list[BadRow] = []
    positions = []
    for position, line in enumerate(lines):
        try:
            values.append(_value(line, column))
        except _BadLineError as error:
            bad.append(bad_row(int(lines.rows[position]), error.reason, error.detail, lines.raw(position)))
            positions.append(position)
    lines.leave_out(positions)
    return pa.array(values, pa.large_binary()), bad


class _BadLineError(Exception):
    """A line that gives no document."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


def _value(line: bytearray, column: str) -> bytes | None:
    try:
        record = json.loads(line.decode(), parse_int=float)
    except (ValueError, RecursionError) as error:
        return _value_by_arrow(line, column, error)
    if not isinstance(record, dict):
        raise _BadLineError(NOT_AN_OBJECT, f"found {_excerpt(line)}")
    value = record.get(column)
    if value is None or isinstance(value, str):
        return None if value is None else _encoded(value)
    found = f"{value:g}" if isinstance(value, float) else _excerpt(json.dumps(value).encode())
    raise _BadLineError(NOT_TEXT, f"the value of {column!r} is {found}")


def _value_by_arrow(line: bytearray, column: str, error: Exception) -> bytes | None:
    """What pyarrow makes of a line that Python refuses: it would have passed in another block, so it passes here."""
    text = None
    if line[:1] == b"{" and line[-1:] == b"}" and len(line) <= LONGEST_BLOCK:
        try:
            text = _parse(line, column)
        except pa.ArrowInvalid:
            text = None
    if text is None or len(text) != 1:
        raise _BadLineError(NOT_AN_OBJECT, f"{error}; found {_excerpt(line)}") from error
    value: bytes | None = text.cast(pa.large_binary())[0].as_py()
    return value


def _encoded(text: str) -> bytes:
    """Text as UTF-8; lone surrogates become U+FFFD, as tiktoken has it."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _excerpt(line: bytes | bytearray) -> str:
    """The start of a line, with nothing in it that a terminal would obey."""
    text = "".join(char if char.isprintable() else "\ufffd" for char in line[:60].decode("utf-8", "replace"))
    return text if len(line) <= 60 else f"{text}..."
