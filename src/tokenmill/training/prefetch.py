"""Fetch the tokens of the next batches from object stores, in the background and in bounded memory.

The order of a training is computed, so its future is known. A planner thread takes batches in groups, finds the ranges
of parts that they need, merges ranges that are close to each other, and requests them in the order of their first use.
The more of the future fits into the cache, the more of these ranges are neighbors; in the order of the store all of
them are. A rank fetches what it uses, and no blocks that it shares with all other ranks (decision 0056).
"""

from __future__ import annotations

import itertools
import queue
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future
from typing import NamedTuple, Self

import numpy as np

from tokenmill.storage import io_threads
from tokenmill.store.part import TokenArray
from tokenmill.system.storage_settings import bind
from tokenmill.training.batches import Span, SpanContent, read_span
from tokenmill.training.index import PartRange, Stream

# The cache of a process. At two million tokens a second it holds the next minute, or half a minute of uint32.
DEFAULT_PREFETCH_BYTES = 256_000_000

# Fetched ahead before anything was read. A loop that is left early has fetched little that it did not use.
FIRST_BYTES = 2 << 20

# The longest request for several ranges. What the network threads are receiving comes on top of the cache.
MAX_REQUEST_BYTES = 1 << 20

# The largest gap between two ranges of one request: a grain of uint16. Another request costs more than these bytes.
# A gap is not larger than the range after it, either, so at most half of what is fetched is in gaps.
MAX_GAP_BYTES = 16 << 10

# At the end of a loop, the planner may be waiting for a server that does not answer. It ends afterwards.
CLOSE_SECONDS = 1.0

# Groups of batches that fill the cache: one is read while the next one is fetched.
GROUPS = 2


# The spans of a batch, and its shape: sequences, and tokens of a sequence.
SpanBatch = tuple[list[Span], tuple[int, int]]


class Request:
    """One range of a part that is fetched once, for all spans that need tokens of it."""

    def __init__(self, stream: Stream, part: int, start: int, stop: int) -> None:
        self.stream = stream
        self.range = PartRange(part, start, stop)
        self.bytes = (stop - start) * stream.store.dtype.itemsize
        self.users = 0
        self._future: Future[TokenArray] | None = None

    def submit(self) -> Future[TokenArray]:
        """Begin to fetch, unless it has begun."""
        if self._future is None:
            self._future = io_threads().submit(self.stream.read_range, self.range)
        return self._future

    def tokens(self, start: int, stop: int) -> TokenArray:
        """Tokens [start, stop) of the part, as a view. Waits until they are there."""
        return self.submit().result()[start - self.range.start : stop - self.range.start]

    def give_up(self) -> None:
        """Do not fetch, if it has not begun."""
        if self._future is not None:
            self._future.cancel()


class Piece(NamedTuple):
    """Tokens [start, stop) of a part, which one request fetches."""

    request: Request
    start: int
    stop: int


class PlannedBatch(NamedTuple):
    """A batch whose requests are under way: its spans, its rows and their tokens, and the pieces of each span.

    A span of a local store has no pieces.
    """

    spans: list[Span]
    shape: tuple[int, int]
    pieces: list[list[Piece]]

    def contents(self) -> Iterator[SpanContent]:
        """Yield the content of each span. Waits for the network."""
        for span, pieces in zip(self.spans, self.pieces, strict=True):
            arrays = [request.tokens(start, stop) for request, start, stop in pieces]
            tokens = None if not arrays else arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
            yield read_span(span, tokens)


class Prefetcher:
    """Batches with their requests, in order. Use it in a `with` block, whose end gives up the requests under way.

    `peak_bytes` is the most that was cached or requested at a time.
    """

    def __init__(self, batches: Iterable[SpanBatch], prefetch_bytes: int, with_documents: bool) -> None:
        self._batches = iter(batches)
        self._cache_bytes = prefetch_bytes
        self._with_documents = with_documents
        self._planned: queue.SimpleQueue[PlannedBatch | BaseException | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self._held_bytes = 0
        self._used_bytes = 0
        self._is_closed = False
        self._group_limit = sys.maxsize  # batches
        self._planner = threading.Thread(target=bind(self._plan), daemon=True, name="loader planner")
        self.peak_bytes = 0

    def __enter__(self) -> Self:
        self._planner.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        if threading.current_thread() is not self._planner:  # the garbage collector may end a loop in any thread
            self._planner.join(CLOSE_SECONDS)
        while not self._planned.empty():
            batch = self._planned.get()
            for pieces in batch.pieces if isinstance(batch, PlannedBatch) else []:
                for piece in pieces:
                    piece.request.give_up()

    def __iter__(self) -> Iterator[PlannedBatch]:
        while (batch := self._planned.get()) is not None:
            if isinstance(batch, BaseException):
                raise batch
            yield batch
            self._release(batch)

    def _plan(self) -> None:
        """Plan group after group, until the batches end or the block is left. Runs in the planner thread."""
        try:
            while not self._is_closed and (group := self._next_group()):
                planned, requests = plan_group(group, self._with_documents)
                size = sum(request.bytes for request in requests)
                if size > self._cache_bytes and len(group) > 1:
                    self._group_limit = len(group) // 2  # the gaps take more than expected
                    self._batches = itertools.chain(group, self._batches)
                    continue
                if not self._reserve(size):
                    return
                for request in requests:
                    request.submit()
                for batch in planned:
                    self._planned.put(batch)
            self._planned.put(None)
        except BaseException as error:  # noqa: BLE001 - the thread that reads raises it
            self._planned.put(error)

    def _allowed_bytes(self) -> int:
        """What may be cached now: as much as was used so far, so that a short loop does not fill the cache."""
        return min(self._cache_bytes, max(FIRST_BYTES, self._used_bytes))

    def _next_group(self) -> list[SpanBatch]:
        """The next batches, with about as many tokens as a group may have; at least one batch."""
        group, size = [], 0
        for spans, shape in self._batches:
            group.append((spans, shape))
            size += sum((span.stop - span.start) * span.stream.store.dtype.itemsize for span in spans)
            if size >= self._allowed_bytes() // GROUPS or len(group) >= self._group_limit:
                break
        return group

    def _reserve(self, size: int) -> bool:
        """Wait until the cache has room for a group. A group that is larger than the cache waits until it is empty.

        Returns False if the block was left.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_closed or not self._held_bytes or self._held_bytes + size <= self._allowed_bytes()
            )
            self._held_bytes += size
            self.peak_bytes = max(self.peak_bytes, self._held_bytes)
            return not self._is_closed

    def _release(self, batch: PlannedBatch) -> None:
        """Free the requests that no later batch uses. They are in memory until the batch itself is dropped."""
        released = 0
        for pieces in batch.pieces:
            for request, _, _ in pieces:
                request.users -= 1
                released += 0 if request.users else request.bytes
        with self._changed:
            self._held_bytes -= released
            self._used_bytes += released
            self._changed.notify_all()


class _Need(NamedTuple):
    """A range of a part that a span needs. `position` is the place of the range among all that a group needs."""

    stream: Stream
    range: PartRange
    pieces: list[Piece]
    position: int


def plan_group(group: list[SpanBatch], with_documents: bool) -> tuple[list[PlannedBatch], list[Request]]:
    """Plan the requests of some batches. Returns the batches, and the requests in the order of their first use."""
    _open_parts(group, with_documents)
    planned: list[PlannedBatch] = []
    needs: list[_Need] = []
    for spans, shape in group:
        batch = PlannedBatch(spans, shape, [[] for _ in spans])
        planned.append(batch)
        for span, pieces in zip(spans, batch.pieces, strict=True):
            if span.is_remote:
                for some in span.stream.ranges(span.start, span.read_stop):
                    needs.append(_Need(span.stream, some, pieces, len(needs)))
    requests: dict[int, Request] = {}  # by the positions of the ranges
    for neighbors in _neighbors(needs):
        stream, part = neighbors[0].stream, neighbors[0].range.part
        stop = max(need.range.stop for need in neighbors)
        request = Request(stream, part, neighbors[0].range.start, stop)
        for need in neighbors:
            requests[need.position] = request
    for need in needs:  # in the order of the spans, so that the pieces of each span are in order
        own = requests[need.position]
        own.users += 1
        need.pieces.append(Piece(own, need.range.start, need.range.stop))
    return planned, list(dict.fromkeys(requests[need.position] for need in needs))


def _neighbors(needs: list[_Need]) -> Iterator[list[_Need]]:
    """Yield the ranges that one request fetches, by their start: ranges of one part that are close to each other."""
    neighbors: list[_Need] = []
    stop = 0
    for need in sorted(needs, key=lambda need: (id(need.stream), need.range.part, need.range.start)):
        if neighbors:
            first, size = neighbors[0], need.stream.store.dtype.itemsize
            is_same_part = need.stream is first.stream and need.range.part == first.range.part
            gap = need.range.start - stop
            is_near = gap <= need.range.stop - need.range.start and gap * size <= MAX_GAP_BYTES
            if not is_same_part or not is_near or (need.range.stop - first.range.start) * size > MAX_REQUEST_BYTES:
                yield neighbors
                neighbors = []
        stop = max(stop, need.range.stop) if neighbors else need.range.stop
        neighbors.append(need)
    if neighbors:
        yield neighbors


def _open_parts(group: list[SpanBatch], with_documents: bool) -> None:
    """Read the headers of all parts that a group needs, and where their documents begin if that is needed, at once."""
    parts = {
        (span.stream, part)
        for spans, _ in group
        for span in spans
        if span.is_remote
        for part in span.stream.parts(span.start, span.read_stop)
    }
    for _ in io_threads().map(lambda some: some[0].open_part(some[1], with_documents), parts):
        pass
