"""Fill-in-the-middle: documents are cut in three pieces, which are encoded apart and put in another order.

PSM is `<pre> prefix <suf> suffix <mid> middle`. SPM is `<pre> <suf> suffix <mid> prefix middle`, as in the code of
StarCoder and Megatron-LM: the second variant of Bavarian et al., "Efficient Training of Language Models to Fill in the
Middle". Both cuts are uniform over all positions between characters, or between lines, ends included.

Every choice is a hash of the document's key. So it depends on nothing but the document and the key of the job.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.storage.arrow_text import text_buffers
from tokenmill.tokenization.audit import AuditMismatchError
from tokenmill.tokenization.document_hash import Keys, fractions
from tokenmill.tokenization.engines.protocol import CannotEncode, Encoded

ByteArray = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]
CHARACTER, LINE = "character", "line"
NEWLINE = ord("\n")
# The other bytes of a character are less, as signed numbers.
FIRST_BYTE = -64


@dataclass(frozen=True, slots=True)
class Rearrangement:
    """Which documents are rearranged, and how: fractions of them, where they are cut, and the three control tokens."""

    rate: float
    spm: float
    split: str
    tokens: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Slices of the text of documents, and in which order each document has them.

    Slice i is `text[i]`, of document `document[i]`. The rows of `order` are the documents. An entry is the number of a
    slice, -1 for nothing, or -2, -3 and -4 for the control tokens before prefix, suffix and middle.
    """

    text: pa.LargeStringArray
    document: IntArray
    order: IntArray


def plan_layout(text: pa.LargeStringArray, keys: Keys, how: Rearrangement | None) -> Layout:
    """The slices of documents with these keys. Without `how`, they are the documents."""
    count = len(text)
    if how is None:
        return Layout(text, np.arange(count), np.arange(count)[:, None])
    data, offsets = text_buffers(text)
    is_cut = fractions(keys, 0) < how.rate
    is_spm = (fractions(keys, 1) < how.spm)[:, None]
    chosen = np.flatnonzero(is_cut)
    drawn = np.stack([fractions(keys[chosen], draw) for draw in (2, 3)])
    sizes = np.where(is_cut, 3, 1)
    first = np.cumsum(sizes) - sizes
    edges = np.empty(int(sizes.sum()) + 1, np.int64)
    edges[first], edges[-1] = offsets[:-1], offsets[-1]
    edges[first[chosen] + 1], edges[first[chosen] + 2] = _cuts(data, offsets, chosen, drawn, how.split)
    slices = pa.LargeStringArray.from_buffers(
        len(edges) - 1, pa.py_buffer(edges), pa.py_buffer(np.ascontiguousarray(data))
    )
    # Numbers of slices from the first one of a document on: 0 is its prefix, 1 its middle, 2 its suffix.
    psm, spm, whole = (-2, 0, -3, 2, -4, 1), (-2, -3, 2, -4, 0, 1), (0, -1, -1, -1, -1, -1)
    order = np.where(is_cut[:, None], np.where(is_spm, spm, psm), whole)
    return Layout(slices, np.repeat(np.arange(count), sizes), np.where(order < 0, order, order + first[:, None]))


def _cuts(data: ByteArray, offsets: IntArray, chosen: IntArray, drawn: npt.NDArray[np.float64], split: str) -> IntArray:
    """Two positions in each chosen document, in order: starts of its characters or lines, or its end."""
    if not len(data):
        return np.zeros(drawn.shape, np.int64)
    if split == LINE:
        is_start = np.append(True, data[:-1] == NEWLINE)
        is_start[offsets[:-1][offsets[:-1] < len(data)]] = True
    else:
        is_start = data.view(np.int8) >= FIRST_BYTE
    begin, end = offsets[chosen], offsets[chosen + 1]
    # Whichever are fewer, starts or other bytes, are listed: half of the memory, and fast for characters and for lines.
    if 2 * np.count_nonzero(is_start) < len(data):
        starts = np.flatnonzero(is_start)
        before, after = np.searchsorted(starts, begin), np.searchsorted(starts, end)
        index = _index(drawn, after - before)
        positions = starts[np.minimum(before + index, len(starts) - 1)]
    else:
        others = np.flatnonzero(~is_start)
        before, after = begin - np.searchsorted(others, begin), end - np.searchsorted(others, end)
        index = _index(drawn, after - before)
        # How many starts there are before each of them. 32 bits save memory.
        numbers = np.arange(len(others), dtype=np.uint32) if len(others) < 1 << 32 else np.arange(len(others))
        others -= numbers
        positions = before + index + np.searchsorted(others, before + index, side="right")
    return np.sort(np.where(index < after - before, positions, end), axis=0)


def _index(drawn: npt.NDArray[np.float64], count: IntArray) -> IntArray:
    """A number from 0 to `count`, the end of the document, for each fraction."""
    return np.minimum((drawn * (count + 1)).astype(np.int64), count)


def encode_layout(
    layout: Layout,
    encode: Callable[[pa.LargeStringArray], Encoded],
    prefix: pa.LargeStringArray | None = None,
    tokens: tuple[int, ...] = (),
) -> Encoded:
    """The tokens of documents, each after its `prefix`, if it has one. `tokens` are the control tokens."""
    parts, order = [_encode(encode, layout.text, layout.document)], layout.order
    if prefix is not None:
        prefixed = np.flatnonzero(prefix.is_valid())
        parts.append(_encode(encode, prefix.take(pa.array(prefixed)), prefixed))
        number = np.full(len(prefix), -1)
        number[prefixed] = len(layout.text) + np.arange(len(prefixed))
        order = np.column_stack([number, order])
    if tokens:
        own = np.array(tokens, parts[0].tokens.dtype)
        parts.append(Encoded(own, np.arange(len(own) + 1)))
    return _gathered(parts, order)


def _encode(encode: Callable[[pa.LargeStringArray], Encoded], text: pa.LargeStringArray, document: IntArray) -> Encoded:
    """The tokens of slices. An error names the document that a slice is of."""
    try:
        return encode(text)
    except (AuditMismatchError, CannotEncode) as failure:
        failure.position = int(document[failure.position])
        raise


def _gathered(parts: list[Encoded], order: IntArray) -> Encoded:
    """The slices of all parts in this order, and the control tokens, which are the last slices. Arrow copies them."""
    tokens = np.concatenate([part.tokens for part in parts])
    lengths = np.concatenate([np.diff(part.offsets) for part in parts])
    edges = np.append(0, np.cumsum(lengths)) * tokens.itemsize
    slices = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(lengths), [None, pa.py_buffer(edges), pa.py_buffer(tokens)]
    )
    is_used = order != -1
    wanted = np.where(order < -1, len(lengths) - 5 - order, order)[is_used]
    data, offsets = text_buffers(slices.take(pa.array(wanted)))
    documents = np.append(0, np.cumsum(is_used.sum(axis=1)))
    return Encoded(data.view(tokens.dtype), offsets[documents] // tokens.itemsize)
