"""Relays a command's stderr unchanged and keeps the end of it for the diagnosis.

If stderr is a terminal, the command gets a pseudo terminal, so that progress bars look as usual.
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

STDERR = 2
KEPT_BYTES = 256 << 10
BLOCK_BYTES = 64 << 10
PIPE_BYTES = 1 << 20

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class StderrRelay:
    """Reads what the command writes to `write_fd` and writes it to this process's stderr, in a thread.

    Only that thread writes, so a stderr that no process reads blocks the command and not the watch.
    """

    def __init__(self) -> None:
        self._stderr = STDERR
        self._is_terminal = os.isatty(self._stderr)
        self._read_fd, self.write_fd = _terminal(self._stderr) if self._is_terminal else _pipe()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._lock = threading.Lock()
        self._kept = bytearray()
        self._lines: collections.deque[str] = collections.deque()
        self._bytes_read = self._bytes_relayed = 0
        self._is_closing = False
        self._at_line_start = True
        self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
        self._thread.start()

    def write_line(self, text: str) -> None:
        """Queues a line of the doctor."""
        self._lines.append(escape_control_characters(text))
        os.eventfd_write(self._wake, 1)

    def text(self) -> str:
        """Returns the end of the command's stderr without terminal codes."""
        with self._lock:
            kept = bytes(self._kept)
        return ESCAPES.sub("", kept.decode(errors="replace")).replace("\r\n", "\n").replace("\r", "\n")

    def contains(self, marker: bytes) -> bool:
        """Returns whether the kept part of stderr contains these bytes."""
        with self._lock:
            return marker in self._kept

    def resize(self) -> None:
        """Gives the command's terminal the current size of the real one."""
        if self._is_terminal:
            _copy_size(self._stderr, self._read_fd)

    def drain(self, give_up: Callable[[], bool]) -> None:
        """Waits until everything written so far is relayed, or until `give_up` returns True."""
        with self._lock:
            unread = fcntl.ioctl(self._read_fd, termios.FIONREAD, bytes(4))
            target = self._bytes_read + int.from_bytes(unread, sys.byteorder)
        while (self._lines or self._bytes_relayed < target) and not give_up():
            time.sleep(0.002)

    def close(self) -> None:
        """Stops the thread and closes the descriptors. Processes that still write get an error."""
        self._is_closing = True
        os.eventfd_write(self._wake, 1)
        self._thread.join()
        for file in (self._read_fd, self.write_fd, self._wake):
            os.close(file)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._read_fd, select.POLLIN)
        poll.register(self._wake, select.POLLIN)
        while not self._is_closing:
            ready = [file for file, _ in poll.poll()]
            if self._wake in ready:
                os.eventfd_read(self._wake)
            if self._read_fd in ready:
                self._relay_block()
            self._write_lines()

    def _relay_block(self) -> None:
        with self._lock:
            block = os.read(self._read_fd, BLOCK_BYTES)
            self._bytes_read += len(block)
            self._keep(block)
        self._write(block)
        self._at_line_start = block.endswith(b"\n")
        self._bytes_relayed += len(block)

    def _write_lines(self) -> None:
        while self._lines:
            self._write(f"{'' if self._at_line_start else chr(10)}{self._lines[0]}\n".encode(errors="replace"))
            self._at_line_start = True
            self._lines.popleft()

    def _write(self, block: bytes) -> None:
        rest = memoryview(block)
        while rest:
            try:
                rest = rest[os.write(self._stderr, rest) :]
            except BlockingIOError:
                select.select([], [self._stderr], [])
            except OSError:  # stderr was closed; keep reading the command's for the diagnosis
                return

    def _keep(self, block: bytes) -> None:
        self._kept += block
        if len(self._kept) > 2 * KEPT_BYTES:
            del self._kept[:-KEPT_BYTES]


def _pipe() -> tuple[int, int]:
    read_fd, write_fd = os.pipe()
    with contextlib.suppress(OSError):  # the user's pipe quota is used up
        fcntl.fcntl(read_fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    return read_fd, write_fd


def _terminal(like: int) -> tuple[int, int]:
    read_fd, write_fd = os.openpty()
    tty.setraw(write_fd)  # the real terminal translates line ends
    _copy_size(like, read_fd)
    return read_fd, write_fd


def _copy_size(source: int, target: int) -> None:
    with contextlib.suppress(OSError):
        fcntl.ioctl(target, termios.TIOCSWINSZ, fcntl.ioctl(source, termios.TIOCGWINSZ, bytes(8)))
