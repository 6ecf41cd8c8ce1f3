"""The documents of an export in their order: from the parts as they are, or from sorted runs when they are shuffled.

Both tell the lengths and origins of the documents in some blocks first, and then give their tokens in batches of
bounded size. Documents are moved by copies of whole stretches of memory, never one by one in Python.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.exports import runs
from tokenmill.exports.order import Order
from tokenmill.part import PartContent, TokenArray, open_part
from tokenmill.storage import Folder

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Origins:
    """Documents without their tokens: how long each is, and which row of which source it was."""

    lengths: npt.NDArray[np.int64]
    source: npt.NDArray[np.uint32]
    row: npt.NDArray[np.uint64]

    def slice(self, start: int, stop: int) -> Origins:
        """Some of the documents."""
        return Origins(self.lengths[start:stop], self.source[start:stop], self.row[start:stop])

    @classmethod
    def joined(cls, pieces: Sequence[Origins]) -> Origins:
        """Documents after documents."""
        if not pieces:
            return cls(np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0, np.uint64))
        columns = zip(*((piece.lengths, piece.source, piece.row) for piece in pieces), strict=True)
        return cls(*map(np.concatenate, columns))


class Extent(Protocol):
    """The documents of some blocks of a stream."""

    origins: Origins

    def batches(self, start: int, stop: int, batch_bytes: int) -> Iterator[TokenArray]:
        """The tokens of documents [start, stop), some of them at a time."""


def gathered(contents: Sequence[PartContent], places: Places) -> TokenArray:
    """The tokens of documents in the order of `places`, which counts through all the contents."""
    dtype = contents[0].tokens.dtype
    if not len(places):
        return np.empty(0, dtype)
    documents = pa.chunked_array([_as_binary(content) for content in contents])
    taken = documents.take(pa.array(places))
    pieces = [_as_tokens(chunk, dtype) for chunk in taken.chunks]
    return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)


def _as_binary(content: PartContent) -> pa.Array:
    """Documents as binary values over the same memory: Arrow copies such values whole."""
    offsets = content.offsets * content.tokens.dtype.itemsize
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(content.tokens)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _as_tokens(values: pa.Array, dtype: np.dtype[np.generic]) -> TokenArray:
    offsets = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values) + 1]
    data = values.buffers()[2]
    if data is None:
        return np.empty(0, dtype)
    return np.frombuffer(data, np.uint8)[offsets[0] : offsets[-1]].view(dtype)


@dataclass(slots=True)
class PartExtent:
    """The documents of one stream in consecutive parts, in the order of the store.

    Parts are opened again for their tokens, one at a time, so that no more than one is mapped into memory.
    """

    store: Folder
    order: Order
    stream: int
    parts: range
    origins: Origins = field(init=False)
    _counts: list[int] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        pieces = []
        for part in self.parts:
            content, kept = self._open(part)
            origins = Origins(np.diff(content.offsets), content.source, content.row)
            if kept is not None:
                origins = Origins(origins.lengths[kept], origins.source[kept], origins.row[kept])
            pieces.append(origins)
            self._counts.append(len(origins.lengths))
        self.origins = Origins.joined(pieces)

    def batches(self, start: int, stop: int, batch_bytes: int) -> Iterator[TokenArray]:
        """The tokens of documents [start, stop): views of the store where nothing was left out."""
        before = 0
        for part, count in zip(self.parts, self._counts, strict=True):
            first, last = max(start - before, 0), min(stop - before, count)
            before += count
            if first >= last:
                continue
            content, kept = self._open(part)
            if kept is not None:
                yield gathered([content], kept[first:last])
            else:
                tokens = content.tokens[content.offsets[first] : content.offsets[last]]
                size = max(1, batch_bytes // tokens.itemsize)
                yield from (tokens[place : place + size] for place in range(0, len(tokens), size))

    def _open(self, part: int) -> tuple[PartContent, Places | None]:
        _, content = open_part(self.store, part)
        streams = self.order.streams(content)
        return content, None if streams is None else np.flatnonzero(streams == self.stream)


@dataclass(slots=True)
class RunExtent:
    """The documents of one stream whose keys are in consecutive bins, sorted by key."""

    folder: Folder
    order: Order
    bins: int
    stream: int
    blocks: range
    origins: Origins = field(init=False)
    _names: list[int] = field(init=False, default_factory=list)
    _first: Places = field(init=False)
    _run: Places = field(init=False)
    _place: Places = field(init=False)

    def __post_init__(self) -> None:
        """Read where the documents are from, of each run, and sort them."""
        pieces, sorted_by, first = [], [], []
        low, high = (self.stream * self.bins + edge for edge in (self.blocks.start, self.blocks.stop))
        for run in runs.committed(self.folder):
            documents = runs.read_index(self.folder, run).documents
            start, stop = int(documents[low]), int(documents[high])
            if start == stop:
                continue
            with runs.opened(self.folder, run) as content:
                some = content.slice(start, stop)
                pieces.append(Origins(np.diff(some.offsets), some.source.copy(), some.row.copy()))
                sorted_by.append(self.order.keys(some))
            self._names.append(run)
            first.append(start)
        origins = Origins.joined(pieces)
        found = np.concatenate(sorted_by) if sorted_by else np.empty(0, np.uint64)
        permutation = np.argsort(found, kind="stable")  # equal keys stay in the order of the store
        self.origins = Origins(origins.lengths[permutation], origins.source[permutation], origins.row[permutation])
        counts = [len(piece.lengths) for piece in pieces]
        self._first = np.array(first, np.int64)
        self._run = np.repeat(np.arange(len(counts)), counts)[permutation]
        self._place = np.concatenate([np.arange(count) for count in counts])[permutation] if counts else self._run

    def batches(self, start: int, stop: int, batch_bytes: int) -> Iterator[TokenArray]:
        """The tokens of documents [start, stop). A range of keys is a stretch of each run, because runs are sorted."""
        if not self._names:
            return
        token_bytes = runs.token_bytes(self.folder, self._names[0])
        ends = np.cumsum(self.origins.lengths[start:stop]) * token_bytes
        edges = np.searchsorted(ends, np.arange(batch_bytes, ends[-1] if len(ends) else 0, batch_bytes), side="right")
        for low, high in zip([0, *edges.tolist()], [*edges.tolist(), stop - start], strict=True):
            if low < high:
                yield self._batch(start + low, start + high)

    def _batch(self, start: int, stop: int) -> TokenArray:
        run, place = self._run[start:stop], self._place[start:stop]
        counts = np.bincount(run, minlength=len(self._names))
        before = np.cumsum(counts) - counts
        first = np.zeros_like(counts)
        present = np.flatnonzero(counts)
        first[present] = place[np.argsort(run, kind="stable")[before[present]]]
        begin = self._first + first
        with contextlib.ExitStack() as stack:
            contents = [
                stack.enter_context(runs.opened(self.folder, self._names[number])).slice(low, low + count)
                for number, low, count in zip(
                    present.tolist(), begin[present].tolist(), counts[present].tolist(), strict=True
                )
            ]
            return gathered(contents, place - first[run] + before[run])
