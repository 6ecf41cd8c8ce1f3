r"""Documents made of segments: lists of `{"text": ..., "train": true or false}`.

The text of such a document is that of its segments, without anything between them. While a file is read, the bytes that
are trained on stand in a line before the text, as numbers: `0 12 40 55\n`. So a reader cuts and checks such documents
as it does others. `with_spans` takes the line away.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.sources.bad_rows import NOT_SEGMENTS, bad_row, without_rows
from tokenmill.sources.documents import Documents, ReadOptions, SourceFile, as_text
from tokenmill.spans import Spans, merged

# The fields of a segment.
TEXT, TRAIN = "text", "train"
# Stands for the numbers if a segment lacks its text, or whether it is trained on.
_WRONG = "?"


def join_segments(column: pa.Array) -> pa.LargeStringArray:
    """The documents of a column of lists of segments."""
    lengths = pc.list_value_length(column).fill_null(0).to_numpy(zero_copy_only=False)
    parents, segments = np.repeat(np.arange(len(column)), lengths), pc.list_flatten(column)
    texts, train = pc.struct_field(segments, TEXT), pc.struct_field(segments, TRAIN)
    texts = as_text(texts.dictionary_decode() if pa.types.is_dictionary(texts.type) else texts)
    sizes = pc.binary_length(texts.cast(pa.large_binary())).fill_null(0).to_numpy(zero_copy_only=False)
    edges = np.append(0, np.cumsum(lengths))
    stops = np.append(0, np.cumsum(sizes, dtype=np.int64))
    ends = stops[1:] - stops[edges[parents]]
    is_trained = train.fill_null(False).to_numpy(zero_copy_only=False)
    spans = merged(parents[is_trained], (ends - sizes)[is_trained], ends[is_trained], len(column))
    numbers = _join(spans.offsets, pa.array(spans.values).cast(pa.large_string()), " ")
    is_whole = pc.and_(texts.is_valid(), train.is_valid()).to_numpy(zero_copy_only=False)
    is_wrong = pa.array(np.bincount(parents[~is_whole], minlength=len(column)) > 0)
    lines = pc.if_else(is_wrong, pa.scalar(_WRONG, pa.large_string()), numbers)
    documents = pc.binary_join_element_wise(
        lines, _join(edges, texts.fill_null(""), ""), pa.scalar("\n", pa.large_string())
    )
    return pc.if_else(column.is_valid(), documents, pa.scalar(None, pa.large_string()))


def _join(offsets: Any, strings: pa.LargeStringArray, separator: str) -> pa.LargeStringArray:
    return pc.binary_join(
        pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), strings), pa.scalar(separator, pa.large_string())
    )


def has_wrong(documents: pa.LargeStringArray) -> bool:
    """Whether a segment of these documents lacks its text, or whether it is trained on."""
    return bool(pc.any(pc.starts_with(documents, _WRONG)).as_py())


def join_parsed(value: Any, encode: Callable[[str], bytes]) -> bytes | None:
    """A document from a value of JSON; None if it is not a list of segments."""
    numbers, text, size = list[int](), list[bytes](), 0
    for segment in value if isinstance(value, list) else [None]:
        if not isinstance(segment, dict):
            return None
        own, is_trained = segment.get(TEXT), segment.get(TRAIN)
        if not isinstance(own, str) or not isinstance(is_trained, bool):
            return None
        text.append(encode(own))
        begin, size = size, size + len(text[-1])
        if is_trained and size > begin:
            if numbers and numbers[-1] == begin:
                numbers[-1] = size
            else:
                numbers += [begin, size]
    return b"%b\n%b" % (" ".join(map(str, numbers)).encode(), b"".join(text))


def with_spans(file: SourceFile, documents: Documents, options: ReadOptions) -> Documents:
    """The documents with their text alone, and the bytes that are trained on. Those without segments are bad rows."""
    is_wrong = pc.starts_with(documents.text, _WRONG).fill_null(False).to_numpy(zero_copy_only=False)
    if is_wrong.any():
        rows, texts = documents.rows[is_wrong].tolist(), documents.text.filter(pa.array(is_wrong)).to_pylist()
        found = "a segment has no text, or does not say whether to train on it"
        bad = [bad_row(row, NOT_SEGMENTS, found, text[2:].encode()) for row, text in zip(rows, texts, strict=True)]
        documents = without_rows(file, documents, is_wrong, bad, options)
    parts = pc.split_pattern(documents.text, "\n", max_splits=1)
    lines = pc.list_element(parts, 0) if len(parts) else documents.text
    numbers = pc.split_pattern(lines, " ")
    counts = pc.list_value_length(numbers).fill_null(0).to_numpy(zero_copy_only=False)
    counts = np.where(pc.equal(lines, "").fill_null(False).to_numpy(zero_copy_only=False), 0, counts)
    values = pc.list_flatten(numbers)
    values = values.filter(pc.not_equal(values, "")).cast(pa.uint32()).to_numpy()
    text = pc.list_element(parts, 1) if len(parts) else documents.text
    return replace(documents, text=text, trained=Spans(values, np.append(0, np.cumsum(counts))))
