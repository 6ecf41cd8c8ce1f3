"""Put begin and end tokens around each document by memory copies, and check them on every document."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.engines.protocol import Encoded, Tokens


def framed(encoded: Encoded, begin: int | None, end: int | None) -> Encoded:
    """Put begin and end tokens around each document. Checks the result on every document."""
    if begin is None and end is None:
        return encoded
    offsets = encoded.offsets + np.arange(len(encoded.offsets)) * ((begin is not None) + (end is not None))
    joined = _surround(np.ascontiguousarray(encoded.tokens), encoded.offsets, begin, end)
    if len(joined) != offsets[-1] or not _bounded_by(joined, offsets, begin, end):
        raise TokenizerError(
            "the bos or eot token of a document is missing or in the wrong place", "This is a bug in tokenmill."
        )
    return Encoded(joined, offsets)


def _surround(tokens: Tokens, offsets: npt.NDArray[np.int64], begin: int | None, end: int | None) -> Tokens:
    """Put a token before and after each document, copying whole documents at a time."""
    size = tokens.dtype.itemsize
    binary = pa.large_binary()
    documents = pa.LargeBinaryArray.from_buffers(
        binary, len(offsets) - 1, [None, pa.py_buffer(offsets * size), pa.py_buffer(tokens)]
    )
    before = [pa.scalar(tokens.dtype.type(begin).tobytes(), binary)] if begin is not None else []
    after = [pa.scalar(tokens.dtype.type(end).tobytes(), binary)] if end is not None else []
    joined = pc.binary_join_element_wise(*before, documents, *after, pa.scalar(b"", binary))
    data = joined.buffers()[2]
    length = len(tokens) + (len(offsets) - 1) * (len(before) + len(after))
    return np.frombuffer(data, tokens.dtype)[:length] if length else tokens


def _bounded_by(tokens: Tokens, offsets: npt.NDArray[np.int64], begin: int | None, end: int | None) -> bool:
    first, last = offsets[:-1], offsets[1:] - 1
    return (begin is None or bool((tokens[first] == begin).all())) and (
        end is None or bool((tokens[last] == end).all())
    )
