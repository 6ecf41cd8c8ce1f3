"""The token stream of one split of a store: from a position in the stream to a range of a part.

The stream has the documents of the split in the order of the store. Without a split it is the whole store. Within a
part, the documents of the split form segments: ranges of tokens without a document of the other split between them.
"""

from __future__ import annotations

import functools
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tokenmill.errors import CorruptStore
from tokenmill.store.part import TokenArray
from tokenmill.store.part_index import MAX_MAPPED_PARTS, running_sums
from tokenmill.training.order import Numbers
from tokenmill.training.parts import MAX_RANGED_PARTS, LoaderParts
from tokenmill.training.split_table import SplitTable


class Segments(NamedTuple):
    """The segments of a part: the position of each in the part's share of the stream, and in the part."""

    starts: array[int]
    offsets: array[int]


class PartRange(NamedTuple):
    """Tokens [start, stop) of a part."""

    part: int
    start: int
    stop: int


class DocumentRange(NamedTuple):
    """The documents with tokens in a range of a part, which has `tokens` tokens from `start` on.

    `begins` is where they begin in the part, the first perhaps before `start`, and `first` the number of the first.
    """

    begins: Numbers
    start: int
    tokens: int
    first: int


def join_documents(ranges: Iterable[DocumentRange]) -> tuple[Numbers, Numbers]:
    """Where documents begin in the tokens of all ranges, and their numbers.

    A document that begins before its range begins with the range. One without tokens is left out.
    """
    begins, start, tokens, first = zip(*ranges, strict=True)
    counts = np.array(list(map(len, begins)))
    ends, own = np.cumsum(tokens), np.cumsum(counts)  # of each range: the tokens, and the documents
    positions = np.concatenate(begins) + np.repeat(ends - tokens - start, counts)
    positions[own - counts] = ends - tokens
    numbers = np.arange(len(positions)) + np.repeat(first - own + counts, counts)
    has_tokens = np.append(positions[1:], ends[-1]) > positions
    return positions[has_tokens], numbers[has_tokens]


WHOLE = Segments(array("q", [0]), array("q", [0]))


class Stream:
    """The tokens of a store, or of some of its documents. `split` is None for all documents.

    `source` is the number of the source that the stream belongs to. `first_document` is the number of documents in the
    stores before this one.
    """

    def __init__(self, parts: LoaderParts, split: SplitTable | None, source: int, first_document: int) -> None:
        self.store = store = parts.store
        self.source = source
        self.first_document = first_document
        self.source_parts = parts
        self._split = split
        tokens = store.manifest["tokens"].to_numpy() if split is None else split.tokens
        self._ends = running_sums(tokens)
        kept_parts = MAX_RANGED_PARTS if self.is_remote else MAX_MAPPED_PARTS
        self._segments = functools.lru_cache(kept_parts)(self._find_segments)

    @property
    def identity(self) -> str:
        """What the stream follows from: the parts of the store, and a condition on kept columns."""
        return self.store.identity if self._split is None else self._split.choice.identity(self.store)

    @property
    def where(self) -> str | None:
        """The condition on kept columns, or None."""
        return None if self._split is None else self._split.choice.where

    @property
    def has_spans(self) -> bool:
        """Whether only some tokens of the documents are trained on."""
        return bool(self.store.job.segments)

    @property
    def is_remote(self) -> bool:
        """Whether reads wait for a network."""
        return self.source_parts.folder.is_remote

    @property
    def tokens(self) -> int:
        """The number of tokens in the stream."""
        return self._ends[-1] if self._ends else 0

    def parts(self, start: int, stop: int) -> range:
        """The numbers of the parts that hold tokens [start, stop) of the stream, at least one."""
        return range(bisect_right(self._ends, start), bisect_right(self._ends, stop - 1) + 1)

    def open_part(self, part: int, with_documents: bool) -> None:
        """Read what `ranges` needs of a part, and `documents` if that is to be called."""
        if self._split is not None:
            self._segments(part)
        if with_documents or self.has_spans:
            self.source_parts.offsets(part)
        if self.has_spans:
            self.source_parts.train(part)
        self.source_parts.tokens(part, 0, 0)

    def read_range(self, some: PartRange) -> TokenArray:
        """The tokens of a range of a part."""
        return self.source_parts.tokens(some.part, some.start, some.stop)

    def read(self, start: int, stop: int) -> TokenArray:
        """Tokens [start, stop) of the stream, at least one: a view if they are in one segment, else a copy."""
        part = bisect_right(self._ends, start)
        before = self._ends[part - 1] if part else 0
        if stop <= self._ends[part]:
            starts, offsets = WHOLE if self._split is None else self._segments(part)
            segment = bisect_right(starts, start - before) - 1
            if segment + 1 == len(starts) or stop - before <= starts[segment + 1]:
                offset = offsets[segment] - starts[segment] - before
                return self.source_parts.tokens(part, start + offset, stop + offset)
        ranges = self.ranges(start, stop)
        return np.concatenate([self.source_parts.tokens(some.part, some.start, some.stop) for some in ranges])

    def ranges(self, start: int, stop: int) -> list[PartRange]:
        """The ranges of parts that hold tokens [start, stop) of the stream, in order."""
        ranges = []
        part = bisect_right(self._ends, start)
        while start < stop:
            before, end = self._ends[part - 1] if part else 0, self._ends[part]
            if start < end:
                starts, offsets = WHOLE if self._split is None else self._segments(part)
                segment = bisect_right(starts, start - before) - 1
                segment_end = before + starts[segment + 1] if segment + 1 < len(starts) else end
                taken, offset = min(stop, segment_end) - start, offsets[segment] + start - before - starts[segment]
                ranges.append(PartRange(part, offset, offset + taken))
                start += taken
            part += start == end
        return ranges

    def documents(self, start: int, stop: int) -> tuple[Numbers, Numbers]:
        """The documents with tokens in [start, stop): their positions, counted from `start`, and their numbers.

        Documents are numbered through all stores of the loader.
        """
        return join_documents(self.document_ranges(start, stop))

    def documents_beginning(self, start: int, stop: int) -> tuple[Numbers, Numbers, Numbers]:
        """The documents that begin in [start, stop): their positions from `start`, their lengths and their numbers.

        One without tokens is left out.
        """
        columns, before = [np.empty((3, 0), np.int64)], 0
        for part, low, high in self.ranges(start, stop):
            offsets = self.source_parts.offsets(part)
            first, last = offsets.searchsorted([low, high]).tolist()
            numbers = np.arange(first, last) + self.first_document + self.store.documents_before(part)
            own = offsets[first : last + 1]
            columns.append(np.stack([own[:-1] - low + before, np.diff(own), numbers])[:, np.diff(own) > 0])
            before += high - low
        positions, lengths, numbers = np.concatenate(columns, axis=1)
        return positions, lengths, numbers

    def document_ranges(self, start: int, stop: int) -> Iterator[DocumentRange]:
        """The documents with tokens in [start, stop), for each range of a part."""
        for part, low, high in self.ranges(start, stop):
            offsets = self.source_parts.offsets(part)
            first = int(offsets.searchsorted(low, side="right")) - 1
            last = int(offsets.searchsorted(high, side="left"))
            before = self.first_document + self.store.documents_before(part)
            yield DocumentRange(offsets[first:last], low, high - low, before + first)

    def erased(self, start: int, stop: int) -> npt.NDArray[np.bool_] | None:
        """Which of the tokens [start, stop) belong to erased documents; None if the store has none."""
        if not self.source_parts.has_erased:
            return None
        masks = []
        for some in self.ranges(start, stop):
            erased = self.source_parts.erased(some.part)
            if erased is None:
                masks.append(np.zeros(some.stop - some.start, np.bool_))
                continue
            edges = np.clip(self.source_parts.offsets(some.part), some.start, some.stop)
            masks.append(np.repeat(erased > 0, np.diff(edges)))
        mask = np.concatenate(masks)
        return mask if mask.any() else None

    def trained(self, start: int, stop: int) -> npt.NDArray[np.bool_] | None:
        """Which of the tokens [start, stop) are trained on; None if all are."""
        if not self.has_spans:
            return None
        return np.concatenate([self._trained(some) for some in self.ranges(start, stop)])

    def _trained(self, some: PartRange) -> npt.NDArray[np.bool_]:
        train, offsets = self.source_parts.train(some.part), self.source_parts.offsets(some.part)
        if train is None:
            return np.ones(some.stop - some.start, np.bool_)
        first = int(offsets.searchsorted(some.start, side="right")) - 1
        last = int(offsets.searchsorted(some.stop, side="left"))
        begin = int(offsets[first])
        mask = train.slice(first, last).mask(offsets[first : last + 1] - begin)
        return mask[some.start - begin : some.stop - begin]

    def store_position(self, position: int) -> int:
        """The position in the whole store of the token at this position of the stream."""
        (some,) = self.ranges(position, position + 1)
        return self.store.tokens_before(some.part) + some.start

    def is_document_start(self, position: int) -> bool:
        """Whether a document begins with the token at this position of the stream."""
        (some,) = self.ranges(position, position + 1)
        offsets = self.source_parts.offsets(some.part)
        return bool(offsets[offsets.searchsorted(some.start, side="right") - 1] == some.start)

    def _find_segments(self, part: int) -> Segments:
        """The segments of a part. Raises CorruptStore if they have another number of tokens than the table says."""
        if self._split is None:
            return WHOLE
        chosen = self._split.chooses(self.source_parts, part).view(np.int8)
        offsets = self.source_parts.offsets(part)
        edges = np.diff(chosen, prepend=np.int8(0), append=np.int8(0))
        begins, ends = offsets[np.flatnonzero(edges == 1)], offsets[np.flatnonzero(edges == -1)]
        stops = np.cumsum(ends - begins)
        if (int(stops[-1]) if len(stops) else 0) != int(self._split.tokens[part]):
            raise CorruptStore(
                f"the split of part {part} of {self.store.directory} is not as its table says",
                f"Remove {self._split.file} and run again: the table is made again.",
            )
        return Segments(*(array("q", column.tobytes()) for column in (stops - (ends - begins), begins)))
