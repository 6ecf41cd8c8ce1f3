"""What a process is doing right now, written where its supervisor can read it even after a violent death.

A slate is a page of memory that two processes share. The one at work marks on it what it begins, and how long that may
take; the other one sees whether the marks move on, and what the last one says. Each mark tells of which item it is, if
the process was given several.
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
_FIRST_SLOT = 64
_SLOT_BYTES = _SLOT.size + NOTE_BYTES


@dataclass(frozen=True, slots=True)
class Status:
    """The last thing begun: how many were begun before, how long it may take, and what it is.

    `item` is the number of the item that it is part of (0 if it is of none), and `begun` when that was begun.
    """

    number: int
    item: int
    begun: float
    seconds: float
    note: bytes


class StatusPage:
    """The shared page. There is room for two marks, so that the last whole one survives a death in mid-write."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, PAGE_BYTES)
        self._number = 0
        self._item = 0
        self._begun = 0.0

    def begin(self, item: int, seconds: float) -> None:
        """Say that what is marked from now on is of another item, with nothing marked of it yet."""
        self._item, self._begun = item, time.monotonic()
        self.write(b"", seconds)

    def write(self, note: bytes, seconds: float) -> None:
        """Say what begins now. Notes that are too long are cut."""
        self._number += 1
        place = _FIRST_SLOT + self._number % 2 * _SLOT_BYTES
        note = note[:NOTE_BYTES]
        _SLOT.pack_into(self._page, place, self._item, self._begun, seconds, len(note))
        if note:
            self._page[place + _SLOT.size : place + _SLOT.size + len(note)] = note
        _NUMBER.pack_into(self._page, 0, self._number)

    def read(self) -> Status:
        """The last mark; number 0 if there is none yet."""
        number = self.number()
        place = _FIRST_SLOT + number % 2 * _SLOT_BYTES
        item, begun, seconds, length = _SLOT.unpack_from(self._page, place)
        note = self._page[place + _SLOT.size :][: min(length, NOTE_BYTES)]
        if self.number() != number:  # the next but one may have been written over it
            return self.read()
        return Status(number, item, begun, seconds, note)

    def number(self) -> int:
        """How many marks have been made."""
        return int(_NUMBER.unpack_from(self._page)[0])

    def close(self) -> None:
        """Let go of the page."""
        self._page.close()


def shared_file(name: str) -> int:
    """The descriptor of a file that has no name in any directory, in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def new_status_page() -> tuple[int, StatusPage]:
    """An empty slate, and the descriptor by which another process gets it."""
    descriptor = shared_file("tokenmill-slate")
    os.ftruncate(descriptor, PAGE_BYTES)
    return descriptor, StatusPage(descriptor)


_own: StatusPage | None = None
_thread = 0


def use(slate: StatusPage) -> None:
    """From now on, this thread of the process marks what it does on this slate."""
    global _own, _thread  # a process has one supervisor
    _own, _thread = slate, threading.get_ident()


def set_item(item: int, seconds: float = math.inf) -> None:
    """Mark that this process begins an item, or with 0 that it waits, for so many seconds at most."""
    if _own is not None:
        _own.begin(item, seconds)


def set_status(note: bytes, seconds: float) -> None:
    """Mark what this process begins now, and after how many seconds its supervisor may give it up.

    What other threads do in the background is not marked: it is of other items than the one that the process is at.
    """
    if _own is not None and threading.get_ident() == _thread:
        _own.write(note, seconds)


def is_supervised() -> bool:
    """Whether this process works for another one, which looks after it."""
    return _own is not None


def last_status() -> bytes:
    """What this process marked last of the item that it is at."""
    return b"" if _own is None else _own.read().note
