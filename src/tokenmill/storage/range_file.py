"""A remote file as a Python file object. Expected byte ranges are fetched in the background, in bounded memory."""

from __future__ import annotations

import bisect
import io
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

import pyarrow as pa

from tokenmill.storage.addresses import FileInfo
from tokenmill.storage.folder import io_threads

Span = tuple[int, int]  # start and stop of a byte range
Fetch = Callable[[int, int], pa.Buffer]

CHUNK_BYTES = 8 << 20  # of one request: a request that breaks off costs no more
WINDOW_BYTES = 32 << 20  # of one file that are being fetched or wait to be read
MIN_BYTES = 64 << 10  # fetched at least outside the expected ranges: headers are read in small steps
PREFETCH_BYTES = 48 << 20  # fetched for files that are not open yet; beyond it the next files matter more
PREFETCH_SECONDS = 120.0  # after this time a prefetched chunk is dropped: its file is not expected any more


class _Prefetched:
    """Chunks that are fetched before their file is opened. Old ones make room for new ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunks: dict[tuple[Fetch, Span], tuple[float, Future[pa.Buffer]]] = {}

    def start(self, chunk: Span, fetch: Fetch) -> None:
        key, now = (fetch, chunk), time.monotonic()
        with self._lock:
            for old in [old for old, (started, _) in self._chunks.items() if now - started > PREFETCH_SECONDS]:
                self._chunks.pop(old)[1].cancel()
            total = sum(stop - start for _, (start, stop) in self._chunks)
            if key not in self._chunks and total + chunk[1] - chunk[0] <= PREFETCH_BYTES:
                self._chunks[key] = now, io_threads().submit(fetch, *chunk)

    def take(self, chunk: Span, fetch: Fetch) -> Future[pa.Buffer] | None:
        with self._lock:
            started = self._chunks.pop((fetch, chunk), None)
            return None if started is None else started[1]


_prefetched = _Prefetched()


def prefetch_spans(fetch: Fetch, spans: Sequence[Span]) -> None:
    """Start to fetch the spans that a later RangeFile with an equal `fetch` expects."""
    for chunk in _within_window(_split(spans)):
        _prefetched.start(chunk, fetch)


def _split(spans: Sequence[Span]) -> list[Span]:
    """The spans in chunks of at most CHUNK_BYTES."""
    return [
        (offset, min(offset + CHUNK_BYTES, stop)) for start, stop in spans for offset in range(start, stop, CHUNK_BYTES)
    ]


def _within_window(chunks: Sequence[Span]) -> Sequence[Span]:
    """The first chunks, at least one, up to WINDOW_BYTES."""
    total = 0
    for index, (start, stop) in enumerate(chunks):
        total += stop - start
        if total > WINDOW_BYTES:
            return chunks[: max(index, 1)]
    return chunks


class RangeFile(io.RawIOBase):
    """One version of a remote file, for random access. The expected spans, in ascending order, are prefetched."""

    def __init__(self, file: FileInfo, fetch: Fetch, expected: Sequence[Span] = ()) -> None:
        super().__init__()
        self._file = file
        self._fetch = fetch
        self._chunks = _split(expected)
        self._starts = [start for start, _ in self._chunks]
        self._fetching: dict[int, Future[pa.Buffer]] = {}
        self._block: tuple[int, pa.Buffer] = (0, pa.py_buffer(b""))
        self._position = 0
        self._fetch_from(0)

    def readable(self) -> bool:
        """True."""
        return True

    def seekable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The current position."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def size(self) -> int:
        """The size of the file in bytes."""
        return self._file.size

    def read(self, size: int = -1) -> bytes:
        """The next bytes, fewer than `size` only at the end of the file."""
        stop = self._file.size if size is None or size < 0 else min(self._position + size, self._file.size)
        parts = []
        while self._position < stop:
            start, data = self._at(self._position, stop)
            part = data.slice(self._position - start, min(stop - self._position, start + data.size - self._position))
            parts.append(part)
            self._position += part.size
        return parts[0].to_pybytes() if len(parts) == 1 else b"".join(memoryview(part) for part in parts)

    def _at(self, position: int, stop: int) -> tuple[int, pa.Buffer]:
        """A block of bytes that contains a position, and the offset of the block."""
        index = bisect.bisect_right(self._starts, position) - 1
        if index >= 0 and position < self._chunks[index][1]:
            self._fetch_from(index)
            return self._starts[index], self._fetching[index].result()
        start, block = self._block
        if not start <= position < start + block.size:
            is_sequential = bool(block.size) and position == start + block.size
            min_bytes = min(2 * block.size, CHUNK_BYTES) if is_sequential else MIN_BYTES
            end = min(max(stop, position + min_bytes), position + CHUNK_BYTES, self._file.size)
            self._block = (position, self._fetch(position, end))
        return self._block

    def _fetch_from(self, index: int) -> None:
        """Fetch a chunk and the following ones in the background, and drop those before it."""
        for earlier in [other for other in self._fetching if other < index]:
            del self._fetching[earlier]
        for later, chunk in enumerate(_within_window(self._chunks[index:]), index):
            if later not in self._fetching:
                self._fetching[later] = _prefetched.take(chunk, self._fetch) or io_threads().submit(self._fetch, *chunk)

    def close(self) -> None:
        """Drop what was fetched, and cancel what has not started."""
        for future in self._fetching.values():
            future.cancel()
        self._fetching.clear()
        super().close()
