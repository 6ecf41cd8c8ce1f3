"""Text: one document per file, or the pieces between the occurrences of a separator. A row is a document's first byte.

The text is taken as it is: a byte order mark stays, line ends stay. Empty pieces (two separators in a row, or one at
the end of the file) are not documents; an empty file without separator is one empty document.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from tokenmill.sources.bad_rows import split_valid
from tokenmill.sources.delimited import Block, one_slice, open_stream, reach_of, read_pieces, read_whole, split_bytes
from tokenmill.sources.documents import Documents, ReadOptions, Slice, Slices, SourceFile, Span


def split(file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:
    """Byte ranges, which own the documents that start in them; one for the file if it is one document."""
    return split_bytes(file, unit_bytes) if options.separator else one_slice(file)


def byte_ranges(file: SourceFile, file_slice: Slice | None, options: ReadOptions) -> list[Span]:
    """The range itself, and some of the document that goes on after it; all of a file that is one document."""
    return reach_of(file, file_slice, options.separator.encode()) if options.separator else [(0, file.size)]


def read(file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
    """The documents that start in the bytes of the slice."""
    if not options.separator:
        yield _whole(file, options)
        return
    blocks = read_pieces(file, file_slice, options.separator.encode(), options)
    documents_of = functools.partial(_documents, file, options)
    for documents in map(documents_of, blocks):  # a name for the block would keep its memory
        if len(documents.rows) or documents.bad:
            yield documents


def _whole(file: SourceFile, options: ReadOptions) -> Documents:
    with open_stream(file, [(0, file.size)]) as stream:
        data, bad = read_whole(stream, options)
    offsets = np.array([0] if bad else [0, len(data)], dtype=np.int64)
    rows = np.zeros(len(offsets) - 1, dtype=np.uint64)
    return split_valid(file, Documents(_strings(data, offsets), rows, bad), options)


def _documents(file: SourceFile, options: ReadOptions, block: Block) -> Documents:
    """The pieces that are not empty. Pieces and separators take turns as strings, and the separators are dropped."""
    bounds = np.stack([block.start, block.stop], axis=1).ravel()
    wanted = np.zeros(len(bounds), dtype=bool)
    wanted[::2] = block.stop > block.start
    text = _strings(block.data, np.append(bounds, len(block.data))).filter(pa.array(wanted))
    rows = (block.start[wanted[::2]] + block.offset).astype(np.uint64)
    return split_valid(file, Documents(text, rows, block.bad), options)


def _strings(data: bytes | bytearray, offsets: np.typing.NDArray[np.int64]) -> pa.LargeStringArray:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), pa.py_buffer(data)]
    return pa.LargeStringArray.from_buffers(len(offsets) - 1, buffers[1], buffers[2])
