"""A file behind a network as a file: what will be read is fetched ahead, in the background, in bounded memory."""

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
from tokenmill.storage.prefetch import io_threads

Span = tuple[int, int]
Fetch = Callable[[int, int], pa.Buffer]

CHUNK_BYTES = 8 << 20
"""How much is asked for at once: a request that breaks off costs no more."""

WINDOW_BYTES = 32 << 20
"""How much of a file is on its way or waiting to be read, at most."""

MIN_BYTES = 64 << 10
"""What is fetched at least where nothing was foreseen: headers are read in small bites."""

FORESEEN_BYTES = 48 << 20
"""How much may wait for files that are opened later. What comes then is not foreseen: the next ones matter more."""

FORGOTTEN_SECONDS = 120.0
"""After which nobody is expected to come for it any more."""


class _Foreseen:
    """Pieces that were asked for before their file was opened. Those that nobody came for make room for later ones."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pieces: dict[tuple[str, str, Span], tuple[float, Future[pa.Buffer]]] = {}

    def ask(self, file: FileInfo, piece: Span, fetch: Fetch) -> None:
        key, now = (file.path, file.fingerprint, piece), time.monotonic()
        with self._lock:
            for old in [old for old, (asked, _) in self._pieces.items() if now - asked > FORGOTTEN_SECONDS]:
                self._pieces.pop(old)[1].cancel()
            held = sum(stop - start for _, _, (start, stop) in self._pieces)
            if key not in self._pieces and held + piece[1] - piece[0] <= FORESEEN_BYTES:
                self._pieces[key] = now, io_threads().submit(fetch, *piece)

    def take(self, file: FileInfo, piece: Span) -> Future[pa.Buffer] | None:
        with self._lock:
            asked = self._pieces.pop((file.path, file.fingerprint, piece), None)
            return None if asked is None else asked[1]


_foreseen = _Foreseen()


def prefetch(file: FileInfo, fetch: Fetch, spans: Sequence[Span]) -> None:
    """Begin to fetch what will be read of a file when it is opened with the same spans."""
    for piece in _within_window(_pieces(spans)):
        _foreseen.ask(file, piece, fetch)


def _pieces(spans: Sequence[Span]) -> list[Span]:
    """Spans cut into pieces of bounded size."""
    return [
        (place, min(place + CHUNK_BYTES, stop)) for start, stop in spans for place in range(start, stop, CHUNK_BYTES)
    ]


def _within_window(pieces: Sequence[Span]) -> Sequence[Span]:
    """The first pieces, as many as may be on their way."""
    held = 0
    for place, (start, stop) in enumerate(pieces):
        held += stop - start
        if held > WINDOW_BYTES:
            return pieces[: max(place, 1)]
    return pieces


class RangeFile(io.RawIOBase):
    """One version of a file, for reading at any place. The expected spans, in rising order, are fetched ahead."""

    def __init__(self, file: FileInfo, fetch: Fetch, expected: Sequence[Span] = ()) -> None:
        super().__init__()
        self._file = file
        self._fetch = fetch
        self._pieces = _pieces(expected)
        self._starts = [start for start, _ in self._pieces]
        self._coming: dict[int, Future[pa.Buffer]] = {}
        self._block: tuple[int, pa.Buffer] = (0, pa.py_buffer(b""))
        self._position = 0
        self._ask_from(0)

    def readable(self) -> bool:
        """It can be read."""
        return True

    def seekable(self) -> bool:
        """It can be read anywhere."""
        return True

    def tell(self) -> int:
        """Where it stands."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}[whence]
        self._position = max(base + offset, 0)
        return self._position

    def size(self) -> int:
        """How long the file is."""
        return self._file.size

    def read(self, size: int = -1) -> bytes:
        """The next bytes, fewer only at the end."""
        stop = self._file.size if size is None or size < 0 else min(self._position + size, self._file.size)
        found = []
        while self._position < stop:
            start, data = self._at(self._position, stop)
            part = data.slice(self._position - start, min(stop - self._position, start + data.size - self._position))
            found.append(part)
            self._position += part.size
        return found[0].to_pybytes() if len(found) == 1 else b"".join(memoryview(part) for part in found)

    def _at(self, position: int, stop: int) -> tuple[int, pa.Buffer]:
        """Where a block of bytes that holds a position begins, and the block."""
        number = bisect.bisect_right(self._starts, position) - 1
        if number >= 0 and position < self._pieces[number][1]:
            self._ask_from(number)
            return self._starts[number], self._coming[number].result()
        start, block = self._block
        if not start <= position < start + block.size:
            goes_on = bool(block.size) and position == start + block.size
            least = min(2 * block.size, CHUNK_BYTES) if goes_on else MIN_BYTES
            end = min(max(stop, position + least), position + CHUNK_BYTES, self._file.size)
            self._block = (position, self._fetch(position, end))
        return self._block

    def _ask_from(self, number: int) -> None:
        """Have a piece and those after it on their way, and let go of those before it."""
        for earlier in [each for each in self._coming if each < number]:
            del self._coming[earlier]
        for later, piece in enumerate(_within_window(self._pieces[number:]), number):
            if later not in self._coming:
                self._coming[later] = _foreseen.take(self._file, piece) or io_threads().submit(self._fetch, *piece)

    def close(self) -> None:
        """Let go of what was fetched; what is not needed any more is not waited for."""
        for future in self._coming.values():
            future.cancel()
        self._coming.clear()
        super().close()
