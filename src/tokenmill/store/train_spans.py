"""The column `train` of a part: which tokens of each document are trained on. Without the column, all are."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.humanize import Readable

SPANS_PER_BATCH = 1 << 20
"""A sparse file can have more spans than fit in memory, so they are checked in batches."""

TYPE = pa.large_list(pa.field("item", pa.uint32()))


@dataclass(frozen=True, slots=True, repr=False)
class TrainSpans(Readable):
    """The begin and the end of each range of trained tokens, counted from the start of its document, in order.

    Those of document i are `values[offsets[i] : offsets[i + 1]]`.
    """

    values: npt.NDArray[np.uint32]
    offsets: npt.NDArray[np.int64]

    def slice(self, start: int, stop: int) -> TrainSpans:
        """Those of documents [start, stop), without a copy."""
        return TrainSpans(self.values, self.offsets[start : stop + 1])

    def select(self, is_kept: npt.NDArray[np.bool_]) -> TrainSpans:
        """Those of some documents."""
        kept = self.emptied(~is_kept)
        return TrainSpans(kept.values, kept.offsets[np.append(True, is_kept)])

    def emptied(self, is_empty: npt.NDArray[np.bool_]) -> TrainSpans:
        """The same without those of some documents, of which no token is trained on."""
        counts = np.diff(self.offsets)
        values = self.values[self.offsets[0] : self.offsets[-1]][np.repeat(~is_empty, counts)]
        return TrainSpans(values, np.append(0, np.cumsum(np.where(is_empty, 0, counts))))

    def array(self) -> pa.Array:
        """The column."""
        return pa.LargeListArray.from_arrays(pa.array(self.offsets), pa.array(self.values), type=TYPE)

    def fit(self, documents: npt.NDArray[np.int64]) -> bool:
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

    def _fit(self, spans: npt.NDArray[np.uint32], start: int, documents: npt.NDArray[np.int64]) -> bool:
        """Whether this batch fits, and the first span after it: a span is compared with the next one."""
        begin, end = spans[start : start + SPANS_PER_BATCH + 1].astype(np.int64).T
        document = np.searchsorted(self.offsets, 2 * np.arange(start, start + len(begin)), side="right") - 1
        lengths = documents[document + 1] - documents[document]
        is_next = (document[1:] > document[:-1]) | (begin[1:] >= end[:-1])
        return bool(((begin < end) & (end <= lengths)).all() and is_next.all())
