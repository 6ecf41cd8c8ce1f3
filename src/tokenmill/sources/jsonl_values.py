"""Parse JSON Lines, blocks with pyarrow and single lines with Python, and read keys of any plain type.

Both parsers accept the same lines. Python's alone would refuse bytes that are not UTF-8, values in a thousand lists and
objects, and the numbers `Inf`, `-Inf` and `-NaN`. The types of the values are those of all lines of a slice, so they do
not depend on how the slice is cut into blocks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from tokenmill.sources.delimited import Block
from tokenmill.sources.documents import Columns, RowArray
from tokenmill.sources.missing_column import WHITE_SPACE
from tokenmill.sources.plain_values import MAX_EXACT, TEXT, TYPES, as_plain
from tokenmill.storage.arrow_text import as_utf8
from tokenmill.storage.untrusted.malformed import MalformedDataError

# If a line is nested too deeply for Python's parser, values in more lists and objects than this are not read.
MAX_DEPTH = 100

_PART = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]|-?(?:NaN|Inf(?:inity)?)')
_NUMBERS = {"-NaN": "NaN", "Inf": "Infinity", "-Inf": "-Infinity"}
# What stands for such a value until the line is parsed: a number that is not written like this otherwise.
_PLACEHOLDER = "0.0e-00000100"

Types = Mapping[str, pa.DataType]


class TooDeep:
    """A value that is nested too deeply to be read."""


def parse(data: bytes | bytearray, types: Types | None) -> pa.Table:
    """Parse lines with pyarrow: the keys in `types`, or all keys with the types that pyarrow infers."""
    if types is None:
        options = pa.json.ParseOptions(unexpected_field_behavior="infer")
    else:
        schema = pa.schema(list(types.items()))
        options = pa.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    blocks = pa.json.ReadOptions(use_threads=False, block_size=len(data) + 1)
    return pa.json.read_json(pa.BufferReader(data), read_options=blocks, parse_options=options)


def load(line: bytes | bytearray, parse_int: Callable[[str], Any], errors: str) -> Any:
    """Parse a line with Python. `errors` is what happens to bytes that are not UTF-8, as in `bytes.decode`.

    Raises ValueError if the line is not JSON.
    """
    text = line.decode(errors=errors)
    try:
        return json.loads(text, parse_int=parse_int)
    except (ValueError, RecursionError) as error:
        if not _is_accepted(line):
            raise ValueError(str(error)) from error
    return json.loads(_for_python(text), parse_int=parse_int, parse_float=_float)


def _is_accepted(line: bytes | bytearray) -> bool:
    """Whether pyarrow accepts a line as one object."""
    try:
        return line[:1] == b"{" and len(parse(line, {})) == 1
    except pa.ArrowInvalid:
        return False


def _for_python(text: str) -> str:
    """JSON text that Python accepts, with a placeholder for each value in more than MAX_DEPTH lists and objects."""
    kept, end, depth = list[str](), 0, 0
    for match in _PART.finditer(text):
        part = match[0]
        is_kept = depth <= MAX_DEPTH
        depth += (part in {"[", "{"}) - (part in {"]", "}"})
        if is_kept:
            kept += [text[end : match.start()], _NUMBERS.get(part, part) if depth <= MAX_DEPTH else _PLACEHOLDER]
        end = match.end()
    return "".join([*kept, text[end:]])


def _float(digits: str) -> float | TooDeep:
    return TooDeep() if digits == _PLACEHOLDER else float(digits)


MAX_BLOCK_BYTES = 2**31 - 2  # pyarrow counts the bytes of a block in 32 bits

# Python refuses whole numbers with thousands of digits.
MAX_DIGITS = 1000

# Types with which the next slice may be parsed first: no value has two of them. (5 may be a floating point number.)
GUESSED = (TEXT, pa.int64(), pa.bool_())
# The type of each key in the slice before. A wrong guess costs time, and changes nothing.
_guesses: dict[str, pa.DataType] = {}


class BlockLines:
    """The lines of a block that are not blank, their byte offsets in the file, and whether all look like objects."""

    def __init__(self, block: Block) -> None:
        is_object = _looks_like_object(block)
        is_kept = np.ones(len(is_object), dtype=bool)
        self.are_objects = True
        for index in np.flatnonzero(~is_object).tolist():
            line = block.data[block.start[index] : block.stop[index]].strip(WHITE_SPACE)
            is_kept[index] = bool(line)
            self.are_objects &= not line or (line[:1] == b"{" and line[-1:] == b"}")
        self.data = block.data
        self.start = block.start[is_kept]
        self.stop = block.stop[is_kept]
        self.rows: RowArray = (self.start + block.offset).astype(np.uint64)

    def __iter__(self) -> Iterator[bytearray]:
        """The lines, without white space at their ends."""
        for start, stop in zip(self.start.tolist(), self.stop.tolist(), strict=True):
            yield self.data[start:stop].strip(WHITE_SPACE)

    def raw(self, index: int) -> bytearray:
        """A line as it is in the file, without the line end."""
        return self.data[self.start[index] : self.stop[index]]

    def remove(self, indices: list[int]) -> None:
        """Remove some lines."""
        is_kept = np.ones(len(self.rows), dtype=bool)
        is_kept[indices] = False
        self.start, self.stop, self.rows = self.start[is_kept], self.stop[is_kept], self.rows[is_kept]


def _looks_like_object(block: Block) -> npt.NDArray[np.bool_]:
    """Whether each line starts with `{` and ends with `}`, or with `}` and a carriage return."""
    data = np.frombuffer(block.data, dtype=np.uint8)
    first = data[np.minimum(block.start, len(data) - 1)]
    last = data[np.maximum(block.stop - 1, 0)]
    before = data[np.maximum(block.stop - 2, 0)]
    closed = (last == ord("}")) | ((last == ord("\r")) & (before == ord("}")))
    return np.asarray((first == ord("{")) & closed & (block.stop - block.start >= 2))


def parse_block(lines: BlockLines, types: Types) -> pa.Table | None:
    """Some keys of all lines, or None if pyarrow refuses a line or does not find one object in each.

    Every line must begin with `{` and end with `}`. Then no object spans two lines, so an equal number of objects and
    lines means one object per line. (pyarrow 26 also crashes on a block that begins with a bare `null`.)
    """
    if not lines.are_objects or len(lines.data) > MAX_BLOCK_BYTES:
        return None
    try:
        table = parse(lines.data, types)
    except pa.ArrowInvalid:
        return None
    return table if len(table) == len(lines.rows) else None


def read_values(blocks: Callable[[], Iterator[BlockLines]], names: tuple[str, ...]) -> Columns:
    """The values of some keys in all blocks of a slice; null where a line has none. `blocks` may be called twice."""
    types = {name: _guesses.get(name, TEXT) for name in names}
    if any("." in name for name in names):  # a key, or a path of keys
        found = [_from_lines([line for lines in blocks() for line in _records(lines)], names)]
    else:
        found = [_parse_any(lines, types) for lines in blocks()]
    kinds = {name: {part.values[name].type for part in found if _has_value(part.values[name])} for name in names}
    if any(len(some) > 1 for some in kinds.values()):
        found = [_from_lines([line for lines in blocks() for line in _records(lines)], names)]
    rows = np.concatenate([np.empty(0, np.uint64), *(part.rows for part in found)])
    columns = {name: _joined([part.values[name] for part in found]) for name in names}
    _guesses.update({name: column.type for name, column in columns.items() if column.type in GUESSED})
    return Columns(rows, pa.table(columns))


def _has_value(column: pa.ChunkedArray) -> bool:
    return bool(column.null_count < len(column))


def _joined(columns: list[pa.ChunkedArray]) -> pa.ChunkedArray:
    """The columns of all blocks, whose values have one type. A column without any value is text."""
    kind = next((column.type for column in columns if _has_value(column)), TEXT)
    chunks = [chunk if chunk.type == kind else pa.nulls(len(chunk), kind) for one in columns for chunk in one.chunks]
    return pa.chunked_array(chunks, kind)


def _parse_any(lines: BlockLines, types: dict[str, pa.DataType]) -> Columns:
    """The values of one block. `types` are the types of the block before, and become those of this one."""
    table = parse_block(lines, types)
    if table is None and lines.are_objects and len(lines.data) <= MAX_BLOCK_BYTES:
        types.update(_inferred(lines, types))
        table = parse_block(lines, types)
    if table is None or any(_may_be_rounded(table[name]) for name in types):
        return _from_lines(list(_records(lines)), tuple(types))
    plain = {name: as_plain(table[name].combine_chunks()) for name in types}
    return Columns(lines.rows, pa.table(plain))


def _may_be_rounded(column: pa.ChunkedArray) -> bool:
    """Whether a floating point number is so large that it may have been a whole number with more digits."""
    if column.type != pa.float64():
        return False
    largest = pc.max(pc.abs(column)).as_py()
    return largest is not None and largest >= MAX_EXACT


def _inferred(lines: BlockLines, types: Types) -> dict[str, pa.DataType]:
    """The types that pyarrow infers for these keys. Dates are text, as they are written."""
    try:
        schema = parse(lines.data, None).schema
    except pa.ArrowException:
        return {}
    found = {name: schema.field(name).type for name in types if schema.get_field_index(name) >= 0}
    return {name: found.get(name) if found.get(name) in TYPES else TEXT for name in types}


def _records(lines: BlockLines) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of the lines, each with its row. A line that is not an object is a bad row, and skipped."""
    for row, line in zip(lines.rows.tolist(), lines, strict=True):
        try:
            record = load(line, whole_number, "replace")
        except ValueError:
            continue
        if isinstance(record, dict):
            yield row, record


def whole_number(digits: str) -> int | float:
    """A whole number; a floating point number if it has very many digits."""
    return int(digits) if len(digits) <= MAX_DIGITS else float(digits)


def _from_lines(records: list[tuple[int, dict[str, Any]]], names: tuple[str, ...]) -> Columns:
    """The values of objects that Python has parsed."""
    rows = np.array([row for row, _ in records], np.uint64)
    return Columns(rows, pa.table({name: _column([_at(*record, name) for record in records]) for name in names}))


def _at(row: int, record: dict[str, Any], name: str) -> Any:
    """The value of a key, or at a path of keys. A nested value is JSON text."""
    value: Any = record.get(name)
    if value is None and "." in name:
        value = record
        for step in name.split("."):
            value = value.get(step) if isinstance(value, dict) else None
    if not isinstance(value, dict | list | TooDeep):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, RecursionError) as error:
        raise MalformedDataError(f"the value of {name!r} in the line at byte {row} is nested too deeply") from error


def _column(values: list[Any]) -> pa.Array:
    """Values as one of TYPES: as text if they have several types, or if a number does not fit."""
    kinds = {type(value) for value in values if value is not None}
    try:
        if kinds == {bool}:
            return pa.array(values, pa.bool_())
        if kinds == {int}:
            return pa.array(values, pa.int64())
        whole = (value for value in values if isinstance(value, int))
        if kinds and kinds <= {int, float} and all(float(value) == value for value in whole):
            return pa.array([None if value is None else float(value) for value in values], pa.float64())
    except (OverflowError, pa.ArrowInvalid):
        pass
    return pa.array([None if value is None else _text(value) for value in values], pa.large_binary()).cast(TEXT)


def _text(value: Any) -> bytes:
    """A value as text: a string as it is, and a number as pyarrow writes it."""
    if isinstance(value, str):
        return as_utf8(value)
    if isinstance(value, float):
        return str(pc.cast(pa.scalar(value), pa.string()).as_py()).encode()
    return as_utf8(json.dumps(value, ensure_ascii=False))
