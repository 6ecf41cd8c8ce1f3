"""The number of a line of JSON Lines, counted from the byte at which it starts."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tokenmill import storage
from tokenmill.errors import TokenmillError
from tokenmill.sources.delimited import open_stream
from tokenmill.sources.documents import Int64Array, RowArray, SourceFile
from tokenmill.sources.json_values import has_values

CHUNK_BYTES = 4 << 20


def line_numbers(file: SourceFile, rows: RowArray) -> Int64Array | None:
    """The numbers of the lines at these bytes, in ascending order, from 1.

    None if the file has no lines, is remote or cannot be read. The file is read up to the last of the lines.
    """
    if file.kind != "jsonl" or storage.scheme(file.path):
        return None
    numbers, position, lines = np.empty(len(rows), np.int64), 0, 1
    try:
        storage.check_unchanged(file.info)
        if has_values(file):
            return None
        with open_stream(file, [(0, file.size)]) as stream:
            while not len(rows) or position <= int(rows[-1]):
                data = np.frombuffer(stream.read(CHUNK_BYTES), np.uint8)
                if not len(data):
                    return None
                ends = np.flatnonzero(data == ord("\n")) + position
                first, last = np.searchsorted(rows, [position, position + len(data)]).tolist()
                numbers[first:last] = lines + np.searchsorted(ends, rows[first:last].astype(np.int64))
                position, lines = position + len(data), lines + len(ends)
    except (TokenmillError, pa.ArrowException, OSError, EOFError):
        return None
    return numbers


def row_place(file: SourceFile, row: int) -> str:
    """A row by its number, by the number of its line, or by the byte at which it starts."""
    if file.kind in {"parquet", "arrow", "csv"}:
        return f"row {row:,}"
    numbers = line_numbers(file, np.array([row], np.uint64))
    return f"byte {row:,}" if numbers is None else f"line {numbers[0]:,} (byte {row:,})"
