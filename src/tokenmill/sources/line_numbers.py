"""The number of a line of JSON Lines, counted from the byte at which it starts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tokenmill import storage
from tokenmill.errors import TokenmillError
from tokenmill.sources.delimited import open_stream
from tokenmill.sources.documents import ROW_KINDS, Int64Array, RowArray, SourceFile
from tokenmill.sources.json_values import has_values

CHUNK_BYTES = 4 << 20
# The lines before a row are counted, from the start of its file, if these are not more bytes.
MAX_COUNTED_BYTES = 1 << 30


def line_numbers(file: SourceFile, rows: RowArray, max_bytes: int | None = None) -> Int64Array:
    """The numbers of the lines that start at these bytes, in ascending order, from 1. 0 stands for an unknown number.

    The file is read up to the last of the lines, or up to `max_bytes`. It is unknown if the file is not JSON Lines, is
    remote, has changed or cannot be read.
    """
    numbers = np.zeros(len(rows), np.int64)
    if file.kind != "jsonl" or storage.scheme(file.path) or not len(rows):
        return numbers
    starts, position, lines = rows.astype(np.int64), 0, 1
    stop = int(starts[-1]) if max_bytes is None else min(int(starts[-1]), max_bytes)
    try:
        storage.check_unchanged(file.info)
        if has_values(file):
            return numbers
        with open_stream(file, [(0, file.size)]) as stream:
            while position <= stop and (chunk := stream.read(CHUNK_BYTES)):
                ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n")) + position
                first, last = np.searchsorted(starts, [position, position + len(chunk)]).tolist()
                numbers[first:last] = lines + np.searchsorted(ends, starts[first:last])
                position, lines = position + len(chunk), lines + len(ends)
    except (TokenmillError, pa.ArrowException, OSError, EOFError):
        return np.zeros(len(rows), np.int64)
    return numbers


def row_place(file: SourceFile, row: int) -> str:
    """A row by its number, by the number of its line, or by the byte at which it starts."""
    return place(file.kind, row, int(line_numbers(file, np.array([row], np.uint64))[0]))


def place(kind: str, row: int, line: int = 0) -> str:
    """The same, with the number of its line if it is known."""
    if kind in ROW_KINDS:
        return f"token {row:,}" if kind == "tokens" else f"row {row:,}"
    return f"line {line:,} (byte {row:,})" if line else f"byte {row:,}"
