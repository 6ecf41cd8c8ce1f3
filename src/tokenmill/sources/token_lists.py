"""Documents that are lists of token ids in a column.

While a file is read, a document is a binary value: its ids, in the type ID_TYPE. So a reader cuts, filters and counts
such documents as it does others. A value of another length stands for a list that does not hold ids.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.sources.bad_rows import NOT_IDS, bad_row, without_rows
from tokenmill.sources.documents import Documents, ReadOptions, SourceFile
from tokenmill.sources.token_source import ID_TYPE
from tokenmill.storage.arrow_text import binary_array, text_buffers

ID_BYTES = np.dtype(ID_TYPE).itemsize
MAX_ID = np.iinfo(ID_TYPE).max
# Stands for the ids if one of them is missing, negative, too large or no whole number.
_WRONG = b"?"


def join_ids(column: pa.Array) -> pa.LargeBinaryArray:
    """The documents of a column of lists of whole numbers."""
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    values = pc.list_flatten(column)
    is_wrong = np.zeros(len(column), np.bool_)
    if pa.types.is_null(values.type):
        values = values.cast(pa.uint32())
    if values.null_count or not _fits(values.to_numpy()):
        bad = pc.fill_null(pc.or_(pc.less(values, 0), pc.greater(values, MAX_ID)), True).to_numpy(zero_copy_only=False)
        is_wrong = np.bincount(np.repeat(np.arange(len(column)), lengths)[bad], minlength=len(column)) > 0
        values = pc.fill_null(values, 0)
    ids = values.to_numpy().astype(ID_TYPE)
    documents = binary_array(ids.view(np.uint8), np.append(0, np.cumsum(lengths)) * ID_BYTES)
    if is_wrong.any():
        documents = pc.if_else(pa.array(is_wrong), pa.scalar(_WRONG, pa.large_binary()), documents)
    return pc.if_else(column.is_valid(), documents, None) if column.null_count else documents


def _fits(values: npt.NDArray[Any]) -> bool:
    return not len(values) or (int(values.min()) >= 0 and int(values.max()) <= MAX_ID)


def ids_of_json(value: Any) -> bytes | None:
    """The document of a parsed JSON value; None if the value is not a list of ids."""
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each <= MAX_ID for each in value):
        return None
    return np.array(value, ID_TYPE).tobytes()


def without_frame(file: SourceFile, documents: Documents, options: ReadOptions) -> Documents:
    """The documents without the begin and end tokens of their source. Rows that do not hold ids are bad rows."""
    source = options.tokens
    if source is None or not len(documents.rows):
        return documents
    lengths = pc.binary_length(documents.text).fill_null(0).to_numpy(zero_copy_only=False)
    is_wrong = lengths % ID_BYTES != 0
    if is_wrong.any():
        found = "the list has a value that is missing, negative, larger than 32 bits, or no whole number"
        bad = [bad_row(row, NOT_IDS, found, b"") for row in documents.rows[is_wrong].tolist()]
        documents = without_rows(file, documents, is_wrong, bad, options)
    data, offsets = text_buffers(documents.text)
    if (source.begin, source.end) == (None, None) or not len(data):
        return documents
    ids, offsets = data.view(ID_TYPE), offsets // ID_BYTES
    lengths = np.diff(offsets)
    first, last = offsets[:-1][lengths > 0], offsets[1:][lengths > 0] - 1
    removed = first[:0]
    if source.end is not None:
        edge = first if source.end_first else last
        is_end = ids[edge] == source.end
        removed = edge[is_end]
        behind = first + is_end if source.end_first else first
        first = behind[behind <= last]
    if source.begin is not None:
        removed = np.union1d(removed, first[ids[first] == source.begin])
    if not len(removed):
        return documents
    kept = offsets - np.searchsorted(removed, offsets)
    text = binary_array(np.delete(ids, removed).view(np.uint8), kept * ID_BYTES)
    if documents.text.null_count:
        text = pc.if_else(documents.text.is_valid(), text, None)
    return replace(documents, text=text)
