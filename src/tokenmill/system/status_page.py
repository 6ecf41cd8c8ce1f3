"""The status of a worker, in memory that its supervisor shares and can read even after the worker was killed.

The worker writes what it begins and how many seconds that may take. The supervisor sees whether the status changes, and
what the last one was. Each status names its item, because a worker may have received several.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
import tempfile
import threading
import time
from dataclasses import dataclass

PAGE_BYTES = 4096
NOTE_BYTES = 1900

_NUMBER = struct.Struct("=Q")
_SLOT = struct.Struct("=QddI")
_REFUSED = struct.Struct("=d")
_REFUSED_AT = 8
_FIRST_SLOT = 64
_SLOT_BYTES = _SLOT.size + NOTE_BYTES


@dataclass(frozen=True, slots=True)
class Status:
    """One status.

    Attributes:
        number: How many statuses the worker has written.
        item: The number of the item; 0 without an item.
        begun: When the item was begun, by the monotonic clock.
        seconds: How long the step may take.
        note: What the step is.
    """

    number: int
    item: int
    begun: float
    seconds: float
    note: bytes


class StatusPage:
    """The shared page. It has two slots, so that the last complete status survives a death during a write."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, PAGE_BYTES)
        self._number = 0
        self._item = 0
        self._begun = 0.0

    def set_item(self, item: int, seconds: float) -> None:
        """Begin an item, with an empty note."""
        self._item, self._begun = item, time.monotonic()
        self.write(b"", seconds)

    def write(self, note: bytes, seconds: float) -> None:
        """Write a status. Notes that are too long are cut."""
        self._number += 1
        slot = _FIRST_SLOT + self._number % 2 * _SLOT_BYTES
        note = note[:NOTE_BYTES]
        _SLOT.pack_into(self._page, slot, self._item, self._begun, seconds, len(note))
        if note:
            self._page[slot + _SLOT.size : slot + _SLOT.size + len(note)] = note
        _NUMBER.pack_into(self._page, 0, self._number)

    def read(self) -> Status:
        """The last status; its number is 0 before the first status."""
        number = self.number()
        slot = _FIRST_SLOT + number % 2 * _SLOT_BYTES
        item, begun, seconds, length = _SLOT.unpack_from(self._page, slot)
        note = self._page[slot + _SLOT.size :][: min(length, NOTE_BYTES)]
        if self.number() != number:  # the worker may have overwritten this slot meanwhile
            return self.read()
        return Status(number, item, begun, seconds, note)

    def number(self) -> int:
        """How many statuses have been written."""
        return int(_NUMBER.unpack_from(self._page)[0])

    def write_refusal(self) -> None:
        """Write that a server has just refused a request as one too many. Any thread may call this."""
        _REFUSED.pack_into(self._page, _REFUSED_AT, time.monotonic())

    def refused_at(self) -> float:
        """When a server has last refused a request of the worker, by the monotonic clock; 0 if none has."""
        return float(_REFUSED.unpack_from(self._page, _REFUSED_AT)[0])

    def close(self) -> None:
        """Unmap the page."""
        self._page.close()


def shared_file(name: str) -> int:
    """The descriptor of a file without a name in a directory, in memory where the system supports that."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def new_status_page() -> tuple[int, StatusPage]:
    """An empty page, and the descriptor by which another process opens it."""
    descriptor = shared_file("tokenmill-status")
    os.ftruncate(descriptor, PAGE_BYTES)
    return descriptor, StatusPage(descriptor)


_own: StatusPage | None = None
_thread = 0


def use(page: StatusPage) -> None:
    """Write the status of this thread to a page from now on."""
    global _own, _thread  # a process has one supervisor
    _own, _thread = page, threading.get_ident()


def set_item(item: int, seconds: float = math.inf) -> None:
    """Note that this process begins an item, or waits (0), for at most this many seconds."""
    if _own is not None:
        _own.set_item(item, seconds)


def set_status(note: bytes, seconds: float) -> None:
    """Note what this process begins now, and after how many seconds its supervisor may kill it.

    Calls from other threads are ignored: they prefetch other items than the current one.
    """
    if _own is not None and threading.get_ident() == _thread:
        _own.write(note, seconds)


def note_refusal() -> None:
    """Note that a server has refused a request as one too many: this process waits, and is not stuck."""
    if _own is not None:
        _own.write_refusal()


def is_supervised() -> bool:
    """Whether this process is a worker with a supervisor."""
    return _own is not None


def last_status() -> bytes:
    """The last note of this process on its current item."""
    return b"" if _own is None else _own.read().note
