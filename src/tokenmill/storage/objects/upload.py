"""An object on its way: small ones are sent at once, large ones in parts while they are written."""

from __future__ import annotations

import io
import queue
from collections.abc import Iterator
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self

from tokenmill.storage.interruptible import interruptible
from tokenmill.storage.prefetch import io_threads

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PART_BYTES = 8 << 20
"""What is sent by one request: over a slow line it has to arrive before the request is given up."""

MAX_PARTS = 9000
"""Stores take 10,000 parts at most."""

PARTS_ON_THE_WAY = 2


def part_bytes(size: int) -> int:
    """How large the parts of an object of this size have to be."""
    return max(PART_BYTES, -(-size // MAX_PARTS))


class _GivenUpError(Exception):
    """The writer raised: nothing is to appear."""


class Upload(io.RawIOBase):
    """A file to write to; the object appears when the block ends without an error."""

    def __init__(self, store: ObjectStore, key: str, size_of_part: int = PART_BYTES) -> None:
        super().__init__()
        self._store = store
        self._key = key
        self._part_bytes = size_of_part
        self._held = bytearray()
        self._position = 0
        self._parts: queue.Queue[bytes | _GivenUpError | None] = queue.Queue(PARTS_ON_THE_WAY)
        self._sending: Future[Any] | None = None

    def writable(self) -> bool:
        """It can be written to, and that is all."""
        return True

    def tell(self) -> int:
        """How much was written."""
        return self._position

    def write(self, data: Any) -> int:
        """Take some bytes; whole parts are sent while more are written."""
        view = memoryview(data).cast("B")
        self._position += view.nbytes
        taken = 0
        while len(self._held) + view.nbytes - taken >= self._part_bytes:
            more = self._part_bytes - len(self._held)
            part = bytes(self._held) + bytes(view[taken : taken + more]) if self._held else bytes(view[taken:][:more])
            taken += more
            self._held.clear()
            self._send(part)
        self._held += view[taken:]
        return view.nbytes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        import obstore  # noqa: PLC0415 - not for local runs

        if self._sending is not None:
            self._finish(given_up=kind is not None)
        elif kind is None:
            interruptible(obstore.put, self._store, self._key, self._held, use_multipart=False)

    def _send(self, part: bytes) -> None:
        import obstore  # noqa: PLC0415 - not for local runs

        if self._sending is None:
            self._sending = io_threads().submit(
                obstore.put, self._store, self._key, self._waiting(), chunk_size=self._part_bytes, max_concurrency=1
            )
        self._put(part)

    def _finish(self, *, given_up: bool) -> None:
        if given_up:
            self._put(_GivenUpError())
        else:
            self._put(bytes(self._held))
            self._put(None)
        try:
            if self._sending is not None:
                self._sending.result()
        except _GivenUpError:
            pass

    def _put(self, part: bytes | _GivenUpError | None) -> None:
        """Hand over a part, unless the one who sends them has stopped with an error."""
        while self._sending is not None:
            try:
                self._parts.put(part, timeout=0.2)
            except queue.Full:
                if self._sending.done():
                    self._sending.result()
            else:
                return

    def _waiting(self) -> Iterator[bytes]:
        while (part := self._parts.get()) is not None:
            if isinstance(part, _GivenUpError):
                raise part
            yield part
