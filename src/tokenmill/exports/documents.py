"""The documents of an export in their order: from the parts as they are, or from sorted runs when they are shuffled.

Both tell the lengths and origins of the documents in some blocks first, and then give their tokens in batches of
bounded size. Documents are moved by copies of whole stretches of memory, never one by one in Python.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore
from tokenmill.exports import sorted_runs
from tokenmill.exports.order import SplitAndShuffle
from tokenmill.exports.shards import Counts
from tokenmill.storage import Folder, prefetch_map
from tokenmill.store.part import PartContent, TokenArray

OpenPart = Callable[[int, bool], PartContent]
"""Opens a part by its number; the flag says whether its content is hashed."""

PREFETCH_RUNS = 16
"""How many runs are read at a time where that takes a network: a shard needs something of each."""


@dataclass(frozen=True, slots=True)
class DocumentTable:
    """Documents without their tokens: how long each is, and which row of which source it was."""

    lengths: npt.NDArray[np.int64]
    source: npt.NDArray[np.uint32]
    row: npt.NDArray[np.uint64]

    def slice(self, start: int, stop: int) -> DocumentTable:
        """Some of the documents."""
        return DocumentTable(self.lengths[start:stop], self.source[start:stop], self.row[start:stop])

    @classmethod
    def concatenate(cls, pieces: Sequence[DocumentTable]) -> DocumentTable:
        """Documents after documents."""
        if not pieces:
            return cls(np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint64))
        columns = zip(*((piece.lengths, piece.source, piece.row) for piece in pieces), strict=True)
        return cls(*map(np.concatenate, columns))


class DocumentRange(Protocol):
    """The documents of some blocks of a stream."""

    origins: DocumentTable

    def batches(self, start: int, stop: int, batch_bytes: int) -> Iterator[TokenArray]:
        """The tokens of documents [start, stop), some of them at a time."""


def take_documents(pieces: Sequence[tuple[TokenArray, Counts]], places: Counts) -> TokenArray:
    """The tokens of documents in the order of `places`, which counts through all pieces: tokens and offsets of each."""
    dtype = pieces[0][0].dtype
    if not len(places):
        return np.empty(0, dtype)
    taken = pa.chunked_array([_as_binary(*piece) for piece in pieces]).take(pa.array(places))
    found = [_as_tokens(chunk, dtype) for chunk in taken.chunks]
    return found[0] if len(found) == 1 else np.concatenate(found)


def _as_binary(tokens: TokenArray, offsets: Counts) -> pa.Array:
    """Documents as binary values over the same memory: Arrow copies such values whole."""
    buffers = [None, pa.py_buffer(offsets * tokens.itemsize), pa.py_buffer(tokens)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _as_tokens(values: pa.Array, dtype: np.dtype[np.generic]) -> TokenArray:
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
    data = values.buffers()[2]
    if data is None:
        return np.empty(0, dtype)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]].view(dtype)


@dataclass(slots=True)
class PartDocuments:
    """The documents of one stream in consecutive parts, in the order of the store.

    Parts are opened again for their tokens, one at a time, so that no more than one is mapped into memory; it is then
    that their content is checked, because it is about to be read anyway.
    """

    store: Folder
    order: SplitAndShuffle
    open_part: OpenPart
    stream: int
    parts: range
    origins: DocumentTable = field(init=False)
    _counts: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        pieces = []
        for content, kept in prefetch_map(self.store, functools.partial(self._open, content_too=False), self.parts):
            origins = DocumentTable(np.diff(content.offsets), content.source, content.row)
            if kept is not None:
                origins = DocumentTable(origins.lengths[kept], origins.source[kept], origins.row[kept])
            pieces.append(origins)
            self._counts.append(len(origins.lengths))
        self.origins = DocumentTable.concatenate(pieces)

    def batches(self, start: int, stop: int, batch_bytes: int) -> Iterator[TokenArray]:
        """The tokens of documents [start, stop): views of the store where nothing was left out."""
        ends = np.cumsum(self._counts)
        firsts, lasts = np.maximum(start - ends + self._counts, 0), np.minimum(stop - ends + self._counts, self._counts)
        wanted = np.flatnonzero(firsts < lasts).tolist()
        opening = functools.partial(self._open, content_too=True)
        contents = prefetch_map(self.store, opening, [self.parts[number] for number in wanted])
        for number, (content, kept) in zip(wanted, contents, strict=True):
            first, last = int(firsts[number]), int(lasts[number])
            if kept is not None:
                yield take_documents([(content.tokens, content.offsets)], kept[first:last])
            else:
                tokens = content.tokens[content.offsets[first] : content.offsets[last]]
                size = max(1, batch_bytes // tokens.itemsize)
                yield from (tokens[place : place + size] for place in range(0, len(tokens), size))

    def _open(self, part: int, *, content_too: bool) -> tuple[PartContent, Counts | None]:
        content = self.open_part(part, content_too)
        streams = self.order.streams(content.source, content.row)
        return content, None if streams is None else np.flatnonzero(streams == self.stream)


@dataclass(frozen=True, slots=True)
class Shuffle:
    """How the documents were sorted: into how many runs and bins, with tokens of which type."""

    runs: int
    bins: int
    dtype: str


@dataclass(slots=True)
class SortedRunDocuments:
    """The documents of one stream whose keys are in consecutive bins, sorted by key."""

    folder: Folder
    order: SplitAndShuffle
    shuffle: Shuffle
    stream: int
    blocks: range
    origins: DocumentTable = field(init=False)
    _ranges: list[sorted_runs.SortedRunRange] = field(init=False, default_factory=list)
    _run: Counts = field(init=False)
    _place: Counts = field(init=False)

    def __post_init__(self) -> None:
        """Read where the documents of each run are from, and sort them; equal keys stay in the order of the store."""
        low, high = (self.stream * self.shuffle.bins + edge for edge in (self.blocks.start, self.blocks.stop))
        read = functools.partial(sorted_runs.read_range, self.folder, low=low, high=high)
        found = prefetch_map(self.folder, read, range(self.shuffle.runs), PREFETCH_RUNS)
        self._ranges = [stretch for stretch in found if len(stretch.ends)]
        pieces = [DocumentTable(np.diff(each.ends, prepend=0), each.source, each.row) for each in self._ranges]
        origins = DocumentTable.concatenate(pieces)
        if len(origins.source) and int(origins.source.max()) >= len(self.order.identities):
            raise CorruptStore(
                "a run of a shuffle names a source that there is not",
                f"export       {self.folder.root}",
                "Remove the export's directory and export again.",
            )
        permutation = np.argsort(self.order.keys(origins.source, origins.row), kind="stable")
        self.origins = DocumentTable(
            origins.lengths[permutation], origins.source[permutation], origins.row[permutation]
        )
        counts = [len(piece.lengths) for piece in pieces]
        self._run = np.repeat(np.arange(len(counts)), counts)[permutation]
        self._place = np.concatenate([np.arange(count) for count in [*counts, 0]])[permutation]

    def batches(self, start: int, stop: int, batch_bytes: int) -> Iterator[TokenArray]:
        """The tokens of documents [start, stop). A range of keys is a stretch of each run, because runs are sorted."""
        if start == stop:
            return
        ends = np.cumsum(self.origins.lengths[start:stop]) * np.dtype(self.shuffle.dtype).itemsize
        edges = np.searchsorted(ends, np.arange(batch_bytes, ends[-1], batch_bytes), side="right").tolist()
        for low, high in itertools.pairwise([0, *edges, stop - start]):
            if low < high:
                yield self._batch(start + low, start + high)

    def _batch(self, start: int, stop: int) -> TokenArray:
        run, place = self._run[start:stop], self._place[start:stop]
        counts = np.bincount(run, minlength=len(self._ranges))
        before = np.cumsum(counts) - counts
        present = np.flatnonzero(counts)
        first = np.zeros_like(counts)
        first[present] = place[np.argsort(run, kind="stable")[before[present]]]

        def read(number: int) -> tuple[TokenArray, Counts]:
            start, stop = int(first[number]), int(first[number] + counts[number])
            return self._ranges[number].tokens(self.folder, self.shuffle.dtype, start, stop)

        pieces = list(prefetch_map(self.folder, read, present.tolist(), PREFETCH_RUNS))
        return take_documents(pieces, place - first[run] + before[run])
