"""Which ranges of each document are trained on: in bytes of its text, or in tokens, as the column `train` of a part.

A part without the column is trained on as a whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.humanize import Readable

SPANS_PER_BATCH = 1 << 20
"""A sparse file can have more spans than fit in memory, so they are checked in batches."""

TYPE = pa.large_list(pa.field("item", pa.uint32()))

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, repr=False)
class Spans(Readable):
    """The begin and the end of each range, counted from the start of its document, in order.

    Those of document i are `values[offsets[i] : offsets[i + 1]]`. The first offset is 0, the last one their number.
    """

    values: npt.NDArray[np.integer[Any]]
    offsets: IntArray

    @classmethod
    def join(cls, parts: Sequence[Spans]) -> Spans:
        """Those of the documents of all parts, which begin at offset 0 each."""
        counts = [np.diff(part.offsets) for part in parts]
        values = np.concatenate([np.empty(0, np.uint32), *(part.values for part in parts)])
        return cls(values, np.cumsum(np.concatenate([np.zeros(1, np.int64), *counts])))

    def document(self, position: int) -> npt.NDArray[np.integer[Any]]:
        """The begins and ends of one document, in turn."""
        return self.values[self.offsets[position] : self.offsets[position + 1]]

    def slice(self, start: int, stop: int) -> Spans:
        """Those of documents [start, stop). The values are not copied."""
        offsets = self.offsets[start : stop + 1]
        return Spans(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])

    def select(self, is_kept: npt.NDArray[np.bool_]) -> Spans:
        """Those of some documents."""
        kept = self.emptied(~is_kept)
        return Spans(kept.values, kept.offsets[np.append(True, is_kept)])

    def emptied(self, is_empty: npt.NDArray[np.bool_]) -> Spans:
        """The same without those of some documents, of which no token is trained on."""
        counts = np.diff(self.offsets)
        values = self.values[np.repeat(~is_empty, counts)]
        return Spans(values, np.append(0, np.cumsum(np.where(is_empty, 0, counts))))

    def pairs(self) -> tuple[IntArray, IntArray, IntArray]:
        """The document, the begin and the end of each range."""
        values = self.values.astype(np.int64).reshape(-1, 2)
        document = np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets) // 2)
        return document, values[:, 0], values[:, 1]

    @property
    def covered(self) -> int:
        """How much all ranges cover."""
        _, begin, end = self.pairs()
        return int((end - begin).sum())

    def mask(self, documents: IntArray) -> npt.NDArray[np.bool_]:
        """Whether each token of documents with these offsets is in a range. Tokens before the first offset are not."""
        document, begin, end = self.pairs()
        count = int(documents[-1])
        starts = np.bincount(documents[document] + begin, minlength=count + 1)
        marks = starts - np.bincount(documents[document] + end, minlength=count + 1)
        return np.asarray(np.cumsum(marks[:-1]) > 0)

    def framed(self, lengths: IntArray, *, has_begin: bool, has_end: bool) -> Spans:
        """Those of tokens with a begin and an end token around each document, which had so many tokens.

        The begin token is not trained on. The end token is if the token before it is.
        """
        values = self.values + np.uint32(has_begin)
        last = self.offsets[1:][np.diff(self.offsets) > 0] - 1
        reaches_end = values[last] == lengths[np.diff(self.offsets) > 0] + has_begin
        values[last[reaches_end]] += np.uint32(has_end)
        return Spans(values, self.offsets)

    def unframed(self, lengths: IntArray, *, has_begin: bool, has_end: bool) -> Spans:
        """Those of tokens without the begin and the end token of each document, which had so many tokens with them."""
        last = np.repeat(lengths, np.diff(self.offsets)) - has_end
        return Spans((np.minimum(self.values, last) - has_begin).astype(np.uint32), self.offsets)

    def array(self) -> pa.Array:
        """The column."""
        return pa.LargeListArray.from_arrays(pa.array(self.offsets), pa.array(self.values), type=TYPE)

    def fit(self, documents: IntArray) -> bool:
        """Whether the spans lie in documents with these offsets, in order and without overlap. None is empty.

        The offsets of both are ascending, and those of the spans begin at 0.
        """
        if len(self.offsets) != len(documents) or int(self.offsets[-1]) != len(self.values) or not self._are_pairs():
            return False
        spans = self.values.reshape(-1, 2)
        return all(self._fit(spans, start, documents) for start in range(0, len(spans), SPANS_PER_BATCH))

    def _are_pairs(self) -> bool:
        starts = range(0, len(self.offsets), SPANS_PER_BATCH)
        return not any(bool((self.offsets[start : start + SPANS_PER_BATCH] % 2).any()) for start in starts)

    def _fit(self, spans: npt.NDArray[np.integer[Any]], start: int, documents: IntArray) -> bool:
        """Whether this batch fits, and the first span after it: a span is compared with the next one."""
        begin, end = spans[start : start + SPANS_PER_BATCH + 1].astype(np.int64).T
        document = np.searchsorted(self.offsets, 2 * np.arange(start, start + len(begin)), side="right") - 1
        lengths = documents[document + 1] - documents[document]
        is_next = (document[1:] > document[:-1]) | (begin[1:] >= end[:-1])
        return bool(((begin < end) & (end <= lengths)).all() and is_next.all())


def merged(document: IntArray, begin: IntArray, end: IntArray, documents: int) -> Spans:
    """The ranges of some documents, given in order, without those that are empty. Those that touch become one."""
    has_length = begin < end
    document, begin, end = document[has_length], begin[has_length], end[has_length]
    is_first = np.ones(len(begin), np.bool_)
    is_first[1:] = (document[1:] > document[:-1]) | (begin[1:] > end[:-1])
    is_last = np.append(is_first[1:], True)[: len(begin)]
    values = np.stack([begin[is_first], end[is_last]], axis=1).reshape(-1).astype(np.uint32)
    counts = 2 * np.bincount(document[is_first], minlength=documents)
    return Spans(values, np.append(0, np.cumsum(counts)))


def covering(spans: Spans, documents: IntArray, begins: IntArray, ends: IntArray, tokens: IntArray) -> Spans:
    """The tokens that overlap ranges of the text.

    `documents` are the offsets of the documents in the text, `begins` and `ends` those of each token in it, and
    `tokens` the offsets of the documents in the tokens.
    """
    document, begin, end = spans.pairs()
    first = np.searchsorted(ends, begin + documents[document], side="right")
    last = np.searchsorted(begins, end + documents[document], side="left")
    low, high = tokens[document], tokens[document + 1]
    return merged(document, np.clip(first, low, high) - low, np.clip(last, low, high) - low, len(documents) - 1)
