"""Upload an object while it is written: a small one in one request, a large one in parts."""

from __future__ import annotations

import contextlib
import io
import queue
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from tokenmill.storage.addresses import split_url
from tokenmill.storage.folder import io_threads
from tokenmill.storage.objects.requests import request

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PART_BYTES = 8 << 20  # of one request: over a slow line it must arrive before the request times out
MAX_PARTS = 9000  # stores accept at most 10,000
QUEUED_PARTS = 2


def part_bytes(size: int) -> int:
    """The part size for an object of this size."""
    return max(PART_BYTES, -(-size // MAX_PARTS))


class _AbortedError(Exception):
    """The writer raised: no object may appear."""


class Upload(io.RawIOBase):
    """A writable file. The object appears when the block ends without an error."""

    def __init__(self, store: ObjectStore, url: str, size_of_part: int = PART_BYTES) -> None:
        super().__init__()
        self._store = store
        self._key = split_url(url)[2]
        self._part_bytes = size_of_part
        self._buffer = bytearray()
        self._position = 0
        self._parts: queue.Queue[bytes | _AbortedError | None] = queue.Queue(QUEUED_PARTS)
        self._request: Future[Any] | None = None

    def writable(self) -> bool:
        """True."""
        return True

    def tell(self) -> int:
        """The number of bytes written."""
        return self._position

    def write(self, data: Any) -> int:
        """Buffer bytes. Complete parts are sent in the background."""
        view = memoryview(data).cast("B")
        self._position += view.nbytes
        used = 0
        while len(self._buffer) + view.nbytes - used >= self._part_bytes:
            more = self._part_bytes - len(self._buffer)
            part = bytes(self._buffer) + bytes(view[used : used + more]) if self._buffer else bytes(view[used:][:more])
            used += more
            self._buffer.clear()
            self._send(part)
        self._buffer += view[used:]
        return view.nbytes

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        import obstore  # noqa: PLC0415 - not for local runs

        if self._request is not None:
            self._finish(self._request, is_aborted=kind is not None)
        elif kind is None:
            request(obstore.put, self._store, self._key, self._buffer, use_multipart=False)

    def _send(self, part: bytes) -> None:
        import obstore  # noqa: PLC0415 - not for local runs

        if self._request is None:
            self._request = io_threads().submit(
                obstore.put, self._store, self._key, self._queued(), chunk_size=self._part_bytes, max_concurrency=1
            )
        self._put(part)

    def _finish(self, request: Future[Any], *, is_aborted: bool) -> None:
        if is_aborted:
            self._put(_AbortedError())
        else:
            self._put(bytes(self._buffer))
            self._put(None)
        with contextlib.suppress(_AbortedError):
            request.result()

    def _put(self, part: bytes | _AbortedError | None) -> None:
        """Queue a part, or raise the error with which the request has ended."""
        while self._request is not None:
            try:
                self._parts.put(part, timeout=0.2)
            except queue.Full:
                if self._request.done():
                    self._request.result()
            else:
                return

    def _queued(self) -> Iterator[bytes]:
        while (part := self._parts.get()) is not None:
            if isinstance(part, _AbortedError):
                raise part
            yield part
