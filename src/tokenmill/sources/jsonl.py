"""JSON Lines, plain or compressed: one object per line, one key of which is the text. A row is the line's byte offset.

An array of objects, or pretty-printed objects, in a file with the ending .json are read as JSON Lines (`json_values`).

pyarrow parses blocks of whole lines. A block that it refuses (a lone surrogate, a repeated key, a number beyond a
double) is parsed again line by line with Python's parser, so that the result for a line depends on that line alone.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.sources.bad_rows import (
    NOT_AN_OBJECT,
    NOT_IDS,
    NOT_MESSAGES,
    NOT_SEGMENTS,
    NOT_TEXT,
    NOT_UTF8,
    bad_row,
    split_valid,
)
from tokenmill.sources.conversations import NotMessagesError, conversation, parse
from tokenmill.sources.delimited import (
    BYTE_ORDER_MARK,
    LINE_END,
    Block,
    one_slice,
    open_stream,
    read_segments,
    slice_byte_ranges,
    split_bytes,
    stream_segments,
)
from tokenmill.sources.documents import (
    BadRow,
    Columns,
    Documents,
    ReadOptions,
    RowArray,
    Slice,
    Slices,
    SourceFile,
    Span,
    as_content,
)
from tokenmill.sources.json_values import ValueStream, has_values
from tokenmill.sources.jsonl_values import BlockLines, load, parse_block, read_values, whole_number
from tokenmill.sources.missing_column import WHITE_SPACE, key_spellings
from tokenmill.sources.segments import TEXT, TRAIN, has_wrong, join_parsed, join_segments
from tokenmill.sources.text_columns import (
    NotAnObject,
    has_path,
    join_of,
    joins_lists,
    json_type,
    strings_at,
    template_of,
    text_template,
    value_at,
)
from tokenmill.sources.token_lists import ids_of_json, join_ids
from tokenmill.storage.arrow_text import as_utf8
from tokenmill.storage.untrusted.malformed import MalformedDataError

# Types are not guessed from a longer line.
MAX_GUESSED_BYTES = 1 << 20


def split(file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:  # noqa: ARG001 - the protocol's signature
    """Byte ranges. A range owns the lines that start in it; a compressed file and an array are one range."""
    return one_slice(file) if has_values(file) else split_bytes(file, unit_bytes)


def byte_ranges(file: SourceFile, file_slice: Slice | None, options: ReadOptions) -> list[Span]:  # noqa: ARG001 - the protocol
    """The range itself, and some bytes after it for the end of its last line."""
    return slice_byte_ranges(file, file_slice, LINE_END)


def read(file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
    """The documents of the lines that start in the bytes of the slice."""
    blocks = _blocks(file, file_slice, options)
    documents_of = functools.partial(_documents, file, options)
    for documents in map(documents_of, blocks):  # a loop variable for the block would keep its memory
        if len(documents.rows) or documents.bad:
            yield documents


def require_columns(file: SourceFile, names: tuple[str, ...]) -> None:
    """Do nothing: each line may have other keys."""


def read_columns(
    file: SourceFile, file_slice: Slice | None, names: tuple[str, ...], options: ReadOptions
) -> Iterator[Columns]:
    """The values of some keys in the lines that start in the slice; null where a line lacks one."""

    def blocks() -> Iterator[BlockLines]:
        for block in _blocks(file, file_slice or Slice(0, file.size), options):
            if not block.bad:
                yield BlockLines(_without_byte_order_mark(block))

    yield read_values(blocks, names)


def _blocks(file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Block]:
    """The lines that start in the bytes of the slice. A file that is not JSON Lines is one slice."""
    if not has_values(file):
        yield from read_segments(file, file_slice, LINE_END, options)
        return
    with open_stream(file, [(0, file.size)]) as stream:
        yield from stream_segments(ValueStream(stream), LINE_END, options)


def _documents(file: SourceFile, options: ReadOptions, block: Block) -> Documents:
    lines = BlockLines(_without_byte_order_mark(block))
    bad: list[BadRow] = []
    text = _parse_block(lines, options)
    if text is None:
        text, bad = _parse_lines(lines, options, is_strict=has_values(file))
    names = text_template(options).names[: 1 if options.messages else None]
    missing = _missing(lines, np.flatnonzero(text.is_null()), names)
    found = Documents(as_content(text, options), lines.rows, (*block.bad, *bad), missing=missing)
    return split_valid(file, found, options, lines.raw)


def _missing(lines: BlockLines, nulls: npt.NDArray[np.int64], names: tuple[str, ...]) -> RowArray:
    """The rows, of those at these indices, that lack a key or a path. Only lines that may have all keys are parsed."""
    spellings = [[text.encode() for text in key_spellings(name)] for name in names]
    lacking = []
    for index in nulls.tolist():
        line = lines.raw(index)
        may_have_all = all(any(text in line for text in texts) for texts in spellings)
        if not (may_have_all and _has_paths(line, names)):
            lacking.append(index)
    return np.asarray(lines.rows[np.array(lacking, np.int64)], np.uint64)


def _has_paths(line: bytearray, names: tuple[str, ...]) -> bool:
    try:
        record = load(line.strip(WHITE_SPACE), float, "surrogateescape")
        return all(has_path(record, name) is not False for name in names)
    except (ValueError, RecursionError):  # pyarrow accepts more than Python
        return True


def _without_byte_order_mark(block: Block) -> Block:
    if block.offset != 0 or not block.data.startswith(BYTE_ORDER_MARK):
        return block
    start = block.start.copy()
    start[0] = len(BYTE_ORDER_MARK)
    return Block(block.offset, block.data, start, block.stop)


def _parse_block(lines: BlockLines, options: ReadOptions) -> pa.LargeStringArray | None:
    """The text of all lines, or None if pyarrow refuses a line or does not find one object in each."""
    template = template_of(options)
    if options.messages:
        return None
    if options.segments:
        return _parse_segments(lines, options.column)
    if options.tokens is not None:
        table = None if "." in options.column else parse_block(lines, {options.column: pa.list_(pa.int64())})
        return None if table is None else join_ids(table[options.column].combine_chunks())
    types: dict[str, pa.DataType] | None = dict.fromkeys(template.names, pa.large_string())
    if joins_lists(options):
        types = _types(next(iter(lines), bytearray()), template.names)
    if types is None or (table := parse_block(lines, types)) is None:
        return None
    return template.fill([_strings(table, name, options) for name in template.names], options.null)


def _parse_segments(lines: BlockLines, column: str) -> pa.LargeStringArray | None:
    """The documents of all lines, or None if pyarrow refuses a line, or a segment is not valid."""
    segment = pa.struct([(TEXT, pa.large_string()), (TRAIN, pa.bool_())])
    table = None if "." in column else parse_block(lines, {column: pa.list_(segment)})
    documents = None if table is None else join_segments(table[column].combine_chunks())
    return None if documents is None or has_wrong(documents) else documents


def _types(line: bytearray, names: tuple[str, ...]) -> dict[str, pa.DataType] | None:
    """The types of the keys that hold the text, guessed from a line. A wrong guess costs time, and changes nothing.

    None if two names want different fields of one key: pyarrow would have to parse it with two types.
    """
    try:
        record = json.loads(line.decode()) if len(line) <= MAX_GUESSED_BYTES else None
    except (ValueError, RecursionError):
        record = None
    record = record if isinstance(record, dict) else {}
    types = {name: json_type(record.get(name), ()) for name in names}
    for name in names:
        first, *steps = name.split(".")
        if steps and first in types:
            return None
        if steps:
            types[first] = json_type(record.get(first), tuple(steps))
    return types


def _strings(table: pa.Table, name: str, options: ReadOptions) -> pa.LargeStringArray:
    """The text of a key, or at a path if the line has no such key."""
    text = strings_at(table[name].combine_chunks(), (), join_of(options))
    first, *steps = name.split(".")
    if not steps:
        return text
    return pc.coalesce(text, strings_at(table[first].combine_chunks(), tuple(steps), join_of(options)))


def _parse_lines(
    lines: BlockLines, options: ReadOptions, *, is_strict: bool
) -> tuple[pa.LargeStringArray, list[BadRow]]:
    """The text of the good lines, null where there is none, and the bad lines, which are removed from `lines`.

    If `is_strict`, a line that is not JSON raises: in an array, a missing brace makes one value of many objects.
    """
    template = template_of(options)
    is_one = not options.joins_texts  # what several names give is one text already
    columns: list[list[bytes | None]] = [[] for _ in template.names[: 1 if is_one else None]]
    bad: list[BadRow] = []
    bad_indices = []
    for index, line in enumerate(lines):
        try:
            values = _values(line, options)
        except _BadLineError as error:
            if is_strict and isinstance(error, _NotJsonError):
                raise MalformedDataError(
                    f"the value at byte {lines.rows[index]} is not JSON: {error.detail}"
                ) from error
            bad.append(bad_row(int(lines.rows[index]), error.reason, error.detail, lines.raw(index)))
            bad_indices.append(index)
        else:
            for column, value in zip(columns, values, strict=True):
                column.append(value)
    lines.remove(bad_indices)
    texts = [as_content(pa.array(column, pa.large_binary()), options) for column in columns]
    return texts[0] if is_one else template.fill(texts, options.null), bad


class _BadLineError(Exception):
    """A line cannot be a document."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class _NotJsonError(_BadLineError):
    """A line is not JSON."""


def _values(line: bytearray, options: ReadOptions) -> list[bytes | None]:
    """The text of each column of the template in a line, as UTF-8. It is not valid where the line is not."""
    if options.messages:
        return [_conversation(line, options)]
    try:
        record = load(line, float if options.tokens is None else whole_number, "surrogateescape")
    except ValueError as error:
        raise _NotJsonError(NOT_AN_OBJECT, f"{error}; found {_excerpt(line)}") from error
    if not isinstance(record, dict):
        raise _BadLineError(NOT_AN_OBJECT, f"found {_excerpt(line)}")
    if options.segments:
        join = functools.partial(join_parsed, encode=_encoder(line))
        return [_document(value_at(record, options.column, options), join, NOT_SEGMENTS)]
    if options.tokens is not None:
        return [_document(value_at(record, options.column, options), ids_of_json, NOT_IDS)]
    names = template_of(options).names
    try:
        values = [value_at(record, name, options) for name in names]
    except RecursionError:
        raise _BadLineError(NOT_TEXT, "lists are nested too deeply") from None
    for name, value in zip(names, values, strict=True):
        if isinstance(value, NotAnObject):
            before = name.rsplit(".", value.steps)[0]
            raise _BadLineError(NOT_TEXT, f"{before!r} is {_shown(value.value)}, not an object")
        if value is not None and not isinstance(value, str):
            raise _BadLineError(NOT_TEXT, f"the value of {name!r} is {_shown(value)}")
    encode = _encoder(line)
    return [None if value is None else encode(value) for value in values]


def _encoder(line: bytearray) -> Callable[[str], bytes]:
    """The function that encodes the strings of a line. If the line is not UTF-8, they are not."""
    try:
        line.decode()
    except UnicodeDecodeError:
        return functools.partial(str.encode, errors="surrogatepass")
    return as_utf8


def _document(value: Any, join: Callable[[Any], bytes | None], reason: str) -> bytes | None:
    """The document that a list makes, if there is one. `reason` is why another value is bad."""
    document = None if value is None else join(value)
    if value is not None and document is None:
        raise _BadLineError(reason, f"the value is {_shown(value)}")
    return document


def _conversation(line: bytearray, options: ReadOptions) -> bytes | None:
    try:
        record = parse(line)
    except UnicodeDecodeError as error:
        raise _BadLineError(NOT_UTF8, f"byte {error.start} of the line: {error.reason}") from error
    except ValueError as error:
        raise _NotJsonError(NOT_AN_OBJECT, f"{error}; found {_excerpt(line)}") from error
    if not isinstance(record, dict):
        raise _BadLineError(NOT_AN_OBJECT, f"found {_excerpt(line)}")
    try:
        return conversation(*(value_at(record, name, options) for name in template_of(options).names))
    except NotMessagesError as error:
        raise _BadLineError(NOT_MESSAGES, str(error)) from error


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    try:
        return _excerpt(json.dumps(value, default=lambda _: "...").encode())
    except RecursionError:
        return "nested too deeply"


def _excerpt(line: bytes | bytearray) -> str:
    """The start of a line, without control characters."""
    text = "".join(char if char.isprintable() else "\ufffd" for char in line[:60].decode("utf-8", "replace"))
    return text if len(line) <= 60 else f"{text}..."
