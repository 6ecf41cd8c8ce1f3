"""Text: one document per file, or the segments between separators. A row is the byte offset of a document.

The text is not changed: line ends stay. A byte order mark at the start of a file is not text. Empty segments (two
separators in a row, or one at the end of the file) are not documents. Without separator, an empty file is one empty
document.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tokenmill.errors import UsageError
from tokenmill.sources.bad_rows import split_valid
from tokenmill.sources.delimited import (
    BYTE_ORDER_MARK,
    Block,
    one_slice,
    open_stream,
    read_segments,
    read_whole,
    slice_byte_ranges,
    split_bytes,
    text_separator,
)
from tokenmill.sources.documents import Columns, Documents, ReadOptions, Slice, Slices, SourceFile, Span
from tokenmill.sources.text_columns import parse_template, text_template


def split(file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:
    """Byte ranges. A range owns the documents that start in it; a file that is one document is one range."""
    if options.template or options.prefix or options.segments or options.messages:
        written = options.prefix + options.template
        require_columns(file, (parse_template(written) if written else text_template(options)).names)
    return split_bytes(file, unit_bytes) if options.separator else one_slice(file)


def byte_ranges(file: SourceFile, file_slice: Slice | None, options: ReadOptions) -> list[Span]:
    """The range itself, and some bytes after it for the end of its last document, or all of a one-document file."""
    if not options.separator:
        return [(0, file.size)]
    return slice_byte_ranges(file, file_slice, text_separator(options.separator))


def read(file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
    """The documents that start in the bytes of the slice."""
    if not options.separator:
        yield _whole(file, options)
        return
    blocks = read_segments(file, file_slice, text_separator(options.separator), options)
    documents_of = functools.partial(_documents, file, options)
    for documents in map(documents_of, blocks):  # a loop variable for the block would keep its memory
        if len(documents.rows) or documents.bad:
            yield documents


def require_columns(file: SourceFile, names: tuple[str, ...]) -> None:
    """Raise UsageError: text has no columns."""
    raise UsageError("text files have no columns", f"file         {file.path}", f"column       {', '.join(names)}")


def read_columns(
    file: SourceFile, file_slice: Slice | None, names: tuple[str, ...], options: ReadOptions
) -> Iterator[Columns]:
    """Raise UsageError: text has no columns."""
    del file_slice, options
    require_columns(file, names)
    yield from ()


def _whole(file: SourceFile, options: ReadOptions) -> Documents:
    with open_stream(file, [(0, file.size)]) as stream:
        data, bad = read_whole(stream, options)
    first = _text_start(data)
    offsets = np.array([first] if bad else [first, len(data)], dtype=np.int64)
    rows = offsets[:-1].astype(np.uint64)
    return split_valid(file, Documents(_strings(data, offsets), rows, bad), options)


def _documents(file: SourceFile, options: ReadOptions, block: Block) -> Documents:
    """The segments that are not empty. Builds an array of segments and separators, and filters the separators out."""
    start = block.start.copy()
    start[:1] += _text_start(block.data) if block.offset == 0 else 0
    bounds = np.stack([start, block.stop], axis=1).ravel()
    wanted = np.zeros(len(bounds), dtype=bool)
    wanted[::2] = block.stop > start
    text = _strings(block.data, np.append(bounds, len(block.data))).filter(pa.array(wanted))
    rows = (start[wanted[::2]] + block.offset).astype(np.uint64)
    return split_valid(file, Documents(text, rows, block.bad), options)


def _text_start(data: bytes | bytearray) -> int:
    """Where the text starts at the start of a file: after the byte order mark."""
    return len(BYTE_ORDER_MARK) if data.startswith(BYTE_ORDER_MARK) else 0


def _strings(data: bytes | bytearray, offsets: np.typing.NDArray[np.int64]) -> pa.LargeStringArray:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(data)]
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, buffers[1], buffers[2])
