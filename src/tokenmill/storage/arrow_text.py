"""Text in Arrow: the types that can hold it, the bytes of an array of strings, and lone surrogates."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa


def is_text(kind: pa.DataType) -> bool:
    """Whether a column of this type can contain documents: strings, bytes that may be UTF-8, or only nulls."""
    if pa.types.is_dictionary(kind):
        return bool(pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type))
    strings = (pa.string(), pa.large_string(), pa.string_view())
    return kind in (*strings, pa.binary(), pa.large_binary(), pa.binary_view(), pa.null())


def text_buffers(text: pa.LargeStringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """The bytes of a string array, and the offsets of its documents, which start at 0."""
    _, offsets, data = text.buffers()
    if len(text) == 0 or data is None:
        return np.empty(0, np.uint8), np.zeros(len(text) + 1, np.int64)
    own = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
    return np.frombuffer(data, np.uint8)[own[0] : own[-1]], own - own[0]


def binary_array(data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
    """An array whose value i is data[offsets[i]:offsets[i + 1]]. The data are not copied."""
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets, np.int64)), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def as_utf8(text: str) -> bytes:
    """Text as UTF-8. Lone surrogates become U+FFFD, as in tiktoken."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
