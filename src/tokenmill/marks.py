"""What a process is doing right now, written where its supervisor can read it even after a violent death.

A slate is a page of memory that two processes share. The one at work marks on it what it begins, and how long that may
take; the other one sees whether the marks move on, and what the last one says.
"""

from __future__ import annotations

import mmap
import os
import struct
import tempfile
from dataclasses import dataclass

SLATE_BYTES = 4096
NOTE_BYTES = 1900

_NUMBER = struct.Struct("=Q")
_SLOT = struct.Struct("=dI")
_FIRST_SLOT = 64
_SLOT_BYTES = _SLOT.size + NOTE_BYTES


@dataclass(frozen=True, slots=True)
class Mark:
    """The last thing begun: how many were begun before, how long it may take, and what it is."""

    number: int
    seconds: float
    note: bytes


class Slate:
    """The shared page. There is room for two marks, so that the last whole one survives a death in mid-write."""

    def __init__(self, descriptor: int) -> None:
        self._page = mmap.mmap(descriptor, SLATE_BYTES)
        self._number = 0

    def write(self, note: bytes, seconds: float) -> None:
        """Say what begins now. Notes that are too long are cut."""
        self._number += 1
        place = _FIRST_SLOT + self._number % 2 * _SLOT_BYTES
        note = note[:NOTE_BYTES]
        _SLOT.pack_into(self._page, place, seconds, len(note))
        self._page[place + _SLOT.size : place + _SLOT.size + len(note)] = note
        _NUMBER.pack_into(self._page, 0, self._number)

    def read(self) -> Mark:
        """The last mark; number 0 if there is none yet."""
        number = self.number()
        place = _FIRST_SLOT + number % 2 * _SLOT_BYTES
        seconds, length = _SLOT.unpack_from(self._page, place)
        return Mark(number, seconds, self._page[place + _SLOT.size :][: min(length, NOTE_BYTES)])

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


def new_slate() -> tuple[int, Slate]:
    """An empty slate, and the descriptor by which another process gets it."""
    descriptor = shared_file("tokenmill-slate")
    os.ftruncate(descriptor, SLATE_BYTES)
    return descriptor, Slate(descriptor)


_own: Slate | None = None


def use(slate: Slate) -> None:
    """From now on, this process marks what it does on this slate."""
    global _own  # noqa: PLW0603 - a process has one supervisor
    _own = slate


def doing(note: bytes, seconds: float) -> None:
    """Mark what this process begins now, and after how many seconds its supervisor may give it up."""
    if _own is not None:
        _own.write(note, seconds)
