"""A command's stderr: passed on unchanged as it comes, with the end of it kept to be read.

On a terminal the command gets a terminal of its own, so that progress bars look as they would without us.
"""

from __future__ import annotations

import collections
import contextlib
import fcntl
import os
import re
import select
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable

from tokenmill.humanize import escape_control_characters

OUT = 2
KEPT_BYTES = 256 << 10
BLOCK_BYTES = 64 << 10
PIPE_BYTES = 1 << 20
PATIENCE_SECONDS, POLL_MILLISECONDS = 0.2, 20
EARLY_WORDS = (b"couldn't be hashed properly",)
"""Said once, long before the end: remembered when what is kept moves on."""

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Relay:
    """Reads what the command writes to `theirs`, and writes it to our own stderr, in a thread of its own.

    Only that thread ever writes, so that a stderr which nobody reads holds up the command and not the watch.
    """

    def __init__(self) -> None:
        self._out = OUT
        self._is_terminal = os.isatty(self._out)
        self._ours, self.theirs = _terminal(self._out) if self._is_terminal else _pipe()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._kept = bytearray()
        self._early: set[bytes] = set()
        self._lines: collections.deque[tuple[float, str]] = collections.deque()
        self._taken = self._passed = 0
        self._ending = False
        self._at_line_start = True
        self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
        self._thread.start()

    def say(self, text: str) -> None:
        """A line of our own, after the line that the command is writing, if it ends that soon."""
        self._lines.append((time.monotonic() + PATIENCE_SECONDS, escape_control_characters(text)))
        os.eventfd_write(self._wake, 1)

    def text(self) -> str:
        """The end of what the command wrote, without the codes of a terminal; early words first if they were said."""
        with self._lock:
            whole = b"\n".join([*self._early, self._kept])
        return ESCAPES.sub("", whole.decode(errors="replace")).replace("\r\n", "\n").replace("\r", "\n")

    def has_said(self, words: bytes) -> bool:
        """Whether the command wrote these words, as far as they are kept."""
        with self._lock:
            return words in self._kept or any(words in line for line in self._early)

    def resize(self) -> None:
        """Give the command's terminal the size that ours has now."""
        if self._is_terminal:
            _copy_size(self._out, self._ours)

    def settle(self, give_up: Callable[[], bool]) -> None:
        """Wait until all that has been written until now is passed on, or there is a reason to give up."""
        with self._lock:
            target = self._taken + _waiting_bytes(self._ours)
        while (self._lines or self._passed < target) and not give_up():
            time.sleep(0.002)

    def close(self) -> None:
        """End. Whoever still writes to it will find it closed."""
        self._ending = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        for file in (self._ours, self.theirs, self._wake):
            os.close(file)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._ours, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._ending:
            ready = [file for file, _ in poll.poll(POLL_MILLISECONDS if self._lines else None)]
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if self._ours in ready:
                self._pass_on()
            self._speak()

    def _pass_on(self) -> None:
        with self._lock:
            block = os.read(self._ours, BLOCK_BYTES)
            self._taken += len(block)
            self._keep(block)
        self._write(block)
        self._at_line_start = block.endswith(b"\n")
        self._passed += len(block)

    def _speak(self) -> None:
        while self._lines and (self._at_line_start or self._lines[0][0] < time.monotonic()):
            text = self._lines[0][1]
            self._write(f"{'' if self._at_line_start else chr(10)}{text}\n".encode(errors="replace"))
            self._at_line_start = True
            self._lines.popleft()

    def _write(self, block: bytes) -> None:
        rest = memoryview(block)
        while rest:
            try:
                rest = rest[os.write(self._out, rest) :]
            except BlockingIOError:
                select.select([], [self._out], [])
            except OSError:  # nobody reads our stderr any more; the command's is still worth reading
                return

    def _keep(self, block: bytes) -> None:
        self._kept += block
        if len(self._kept) > 2 * KEPT_BYTES:
            if b"\r" in self._kept:
                self._kept = _as_seen(self._kept)
            dropped = self._kept[:-KEPT_BYTES]
            self._early |= {word for word in EARLY_WORDS if word in dropped}
            del self._kept[:-KEPT_BYTES]


def _as_seen(text: bytearray) -> bytearray:
    """A text without what a terminal has overwritten: of a progress bar, its last state."""
    lines = [line[line.rfind(b"\r", 0, max(0, len(line) - 1)) + 1 :] for line in text.split(b"\n")]
    return bytearray(b"\n").join(lines)


def _waiting_bytes(file: int) -> int:
    return int.from_bytes(fcntl.ioctl(file, termios.FIONREAD, bytes(4)), sys.byteorder)


def _pipe() -> tuple[int, int]:
    ours, theirs = os.pipe()
    with contextlib.suppress(OSError):  # where an ordinary user has used up what there is for all pipes
        fcntl.fcntl(ours, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return ours, theirs


def _terminal(like: int) -> tuple[int, int]:
    ours, theirs = os.openpty()
    tty.setraw(theirs)  # the real terminal does what is to be done with line ends
    _copy_size(like, ours)
    return ours, theirs


def _copy_size(source: int, target: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.ioctl(target, termios.TIOCSWINSZ, fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(8)))
