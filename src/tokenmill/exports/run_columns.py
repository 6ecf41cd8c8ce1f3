"""The kept columns of a sorted run, in a file of which ranges of documents are read.

header    the position of each section in the file, and of the end: three sections for each column
sections  whether each document has a value; the values, or where the text of each document ends; the text
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.exports.formats.protocol import COLUMN_TYPES, ExportedColumn
from tokenmill.storage import Folder
from tokenmill.storage.arrow_text import text_buffers

# The types of the values of a column in the file. The end of a text is a number, too.
_VALUE_TYPES = {"string": "<i8", "int64": "<i8", "float64": "<f8", "bool": "u1"}


def encode(values: pa.Table, columns: Sequence[ExportedColumn]) -> bytes:
    """The content of the file."""
    sections = [section.tobytes() for column in columns for section in _sections(values[column.name], column)]
    starts = 8 * (len(sections) + 1) + np.cumsum([0, *map(len, sections)])
    return b"".join([starts.astype("<i8").tobytes(), *sections])


def _sections(values: pa.ChunkedArray, column: ExportedColumn) -> tuple[npt.NDArray[np.generic], ...]:
    array, text = values.combine_chunks(), np.empty(0, np.uint8)
    is_valid = array.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8)
    if column.type == "string":
        text, offsets = text_buffers(array.fill_null(""))
        plain = offsets[1:]
    else:
        plain = array.fill_null(False if column.type == "bool" else 0).to_numpy(zero_copy_only=False)
    return is_valid, plain.astype(_VALUE_TYPES[column.type]), text


def read_columns(folder: Folder, name: str, columns: Sequence[ExportedColumn], start: int, stop: int) -> pa.Table:
    """Read the columns of documents [start, stop) of a run."""
    header = np.frombuffer(folder.ranges.read_at(name, 0, 8 * (3 * len(columns) + 1)), "<i8").tolist()
    arrays = {
        column.name: _read(folder, name, column, header[3 * number : 3 * number + 3], start, stop)
        for number, column in enumerate(columns)
    }
    return pa.table(arrays)


def _read(  # noqa: PLR0913, PLR0917 - a column in a file, and which of its documents
    folder: Folder, name: str, column: ExportedColumn, sections: Sequence[int], start: int, stop: int
) -> pa.Array:
    is_valid, values, text = sections
    kind = np.dtype(_VALUE_TYPES[column.type])
    nulls = np.frombuffer(folder.ranges.read_at(name, is_valid + start, stop - start), np.uint8) == 0
    before = min(start, 1) if column.type == "string" else 0  # the end of the text before is the start of the first
    data = folder.ranges.read_at(
        name, values + (start - before) * kind.itemsize, (stop - start + before) * kind.itemsize
    )
    plain = np.frombuffer(data, kind)
    if column.type != "string":
        return pa.array(plain.astype(bool) if column.type == "bool" else plain, COLUMN_TYPES[column.type], mask=nulls)
    ends = plain if before else np.concatenate([np.zeros(1, np.int64), plain])
    content = folder.ranges.read_at(name, text + int(ends[0]), int(ends[-1] - ends[0]))
    validity = pa.array(~nulls).buffers()[1]
    buffers = [validity, pa.py_buffer(np.ascontiguousarray(ends - ends[0], np.int64)), pa.py_buffer(content)]
    return pa.Array.from_buffers(COLUMN_TYPES[column.type], stop - start, buffers)
