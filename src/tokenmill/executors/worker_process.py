"""The parent's handle of a worker: it gives items, receives answers, checks the worker and reads how it ended."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tokenmill.executors.forkserver import END_SECONDS, ForkServer
from tokenmill.executors.outcomes import Attempt, Cause, Done, ErrorRecord, ExitReport, Failed, Worker
from tokenmill.system import machine, status_page, storage_settings

# Bytes of a worker's output that a death report shows.
OUTPUT_TAIL_BYTES = 2000

# Bytes of a worker's output that are kept before they are thrown away: they are in memory.
MAX_OUTPUT_BYTES = 1 << 20

# Bytes that can be sent to a worker that does not read: less than the buffer of a pipe.
PIPE_BYTES = 1 << 16

# For how long a worker counts as one that waits, after a server has refused a request of it.
REFUSED_SECONDS = 10.0

# Signals that a process does not get by its own fault.
EXTERNAL_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


@dataclass(frozen=True, slots=True)
class BlamedItem:
    """The item to blame for a death: its number, elapsed seconds, and the last status written for it."""

    number: int
    seconds: float
    note: bytes


class WorkerProcess:
    """Handle of a worker: its pipe, the items it holds (by number, in order), its status page, and how it ended."""

    def __init__(self, forkserver: ForkServer, max_bytes: int | None = None) -> None:
        ours, theirs = socket.socketpair()
        self._forkserver = forkserver
        self._output = status_page.shared_file("tokenmill-output")
        status, self._status = status_page.new_status_page()
        with theirs:
            self._number = forkserver.start_worker(theirs.fileno(), self._output, status)
        os.close(status)
        self.connection = Connection(ours.detach())
        self._pid: int | None = None
        self._peak_bytes = 0
        self._seen_status = 0
        self._inherited_bytes: int | None = None
        self._unchanged_seconds = 0.0
        self._refused_at = 0.0
        self._stopped: ExitReport | None = None
        self._stopped_for: BlamedItem | None = None
        self._stopped_seconds = 0.0
        self.alive = True
        self.items: dict[int, Attempt] = {}
        self._in_background: set[int] = set()  # the items of which only the answer is missing
        self._unsent: deque[bytes] = deque()
        self._prefetches = False
        self._last_number = 0
        self._busy_since = 0.0
        self.resident_bytes = 0
        self.max_bytes = max_bytes  # a worker that holds more gets no further item

    @property
    def pid(self) -> int:
        """The process id, as soon as the worker is started; 0 if it never was."""
        if self._pid is None:
            self._pid = self._forkserver.pid_of(self._number) or 0
        return self._pid

    def send_function(self, function: Any, prefetch: int) -> None:
        """Send the function for the items that follow. If the worker is gone, the next `receive` reports it."""
        self._prefetches = prefetch > 0 and hasattr(function, "prefetch")
        with contextlib.suppress(OSError):
            self.connection.send(("function", function, prefetch, storage_settings.for_workers()))

    @property
    def load(self) -> int:
        """The number of items that it works on or has not begun."""
        return len(self.items) - len(self._in_background)

    def give(self, attempt: Attempt) -> None:
        """Give the worker an item. If the worker is gone, the next `receive` reports it."""
        self._last_number += 1
        self._unsent.append(pickle.dumps(("item", self._last_number, attempt.item)))
        if not self.load:
            self._busy_since, self._unchanged_seconds = time.monotonic(), 0.0
        self.items[self._last_number] = attempt
        self._send_items()

    def _send_items(self) -> None:
        """Send items as far as that cannot block: the worker may itself block until its answer is read."""
        while self._unsent and (
            self._prefetches
            or len(self._unsent) == self.load  # an idle worker reads
            or len(self._unsent[0]) * len(self.items) <= PIPE_BYTES
        ):
            with contextlib.suppress(OSError):
                self.connection.send_bytes(self._unsent.popleft())

    def take(self, number: int) -> Attempt:
        """Remove an item that has an outcome."""
        attempt = self.items.pop(number)
        self._in_background.discard(number)
        if self._unsent and self.alive:
            self._send_items()
        return attempt

    def receive(self) -> tuple[Attempt, Done[Any, Any] | Failed[Any]] | None:
        """Take one of the worker's items, with its outcome; None if the worker died, or is free for another item."""
        self._unchanged_seconds = 0.0
        try:
            answer = None if self.unkillable else self.connection.recv()
        except (EOFError, OSError):
            answer = None
        self.alive = answer is not None
        if answer is None:
            return None
        number, seconds, peak, self.resident_bytes, kind, *content = answer
        if kind == "free":
            self._in_background.add(number)
            return None
        attempt, process = self.take(number), Worker(self.pid, peak)
        if kind == "done":
            return attempt, Done(attempt.item, content[0], process, seconds)
        record: ErrorRecord
        record, trace, note = content
        return attempt, Failed(attempt.item, *record, process, trace, note)

    def check(self, seconds: float) -> int:
        """Check the worker `seconds` after the last check: stop it if it stalls; return its own memory in bytes."""
        held = machine.private_bytes_of(self.pid)
        self._peak_bytes = max(self._peak_bytes, held)
        if self._inherited_bytes is None:
            self._inherited_bytes = self._forkserver.held_bytes()
        self._stop_if_stalled(seconds)
        if os.fstat(self._output).st_size > MAX_OUTPUT_BYTES:
            os.ftruncate(self._output, 0)
            os.lseek(self._output, 0, os.SEEK_SET)  # the file position is shared with the worker
        return max(held - self._inherited_bytes, 0)

    def _stop_if_stalled(self, seconds: float) -> None:
        status = self._status.read()
        self._unchanged_seconds = self._unchanged_seconds + seconds if status.number == self._seen_status else 0.0
        self._seen_status = status.number
        refused_at = self._status.refused_at()
        if refused_at != self._refused_at:  # it waits for a server that answers
            self._refused_at, self._unchanged_seconds = refused_at, 0.0
        if self._stopped is not None:
            self._stopped_seconds += seconds
        elif status.number and self._unchanged_seconds > status.seconds:
            self.stop(Cause.STALLED, status.seconds)

    @property
    def is_refused(self) -> bool:
        """Whether a server has refused a request of the worker in the last seconds."""
        return time.monotonic() - self._refused_at < REFUSED_SECONDS

    def stop(self, cause: Cause, limit: float) -> None:
        """Kill the worker for a cause, which its exit report will give."""
        if self._stopped is None:
            self._stopped_for = self.blamed()
            self._stopped = ExitReport(-signal.SIGKILL, cause, limit)
            self._forkserver.kill(self.pid)

    @property
    def usable(self) -> bool:
        """Whether it can take another item: it lives, was not stopped, and is not too large."""
        is_too_large = self.max_bytes is not None and self.resident_bytes > self.max_bytes
        return self.alive and self._stopped is None and not is_too_large

    @property
    def finished(self) -> bool:
        """Whether no further answer is expected: it died, or it was stopped for an item that it has answered since."""
        return not self.alive or (self._stopped_for is not None and self._stopped_for.number not in self.items)

    @property
    def unkillable(self) -> bool:
        """Whether it was killed and does not die: it waits in the kernel for a disk or network."""
        return self._stopped_seconds > END_SECONDS

    def reap(self) -> tuple[ExitReport, int]:
        """How a worker that has closed its pipe ended, and its peak memory."""
        if self._stopped is not None and self.unkillable:
            return self._stopped, self._peak_bytes
        exit_code, peak = self._forkserver.end_of(self.pid)
        cause = Cause.KILLED if -exit_code in EXTERNAL_SIGNALS else Cause.CRASH
        return self._stopped or ExitReport(exit_code, cause), peak or self._peak_bytes

    def blamed(self) -> BlamedItem:
        """The item that the worker was stopped for, else its current item, else the oldest that it holds."""
        if self._stopped_for is not None:
            return self._stopped_for
        status = self._status.read()
        seconds = time.monotonic() - max(status.begun, self._busy_since)
        if status.item in self.items:
            return BlamedItem(status.item, seconds, status.note)
        return BlamedItem(next(iter(self.items)), seconds, b"")

    def output_tail(self) -> str:
        """The end of what the worker printed, where a native crash often gives its reason."""
        start = max(0, os.fstat(self._output).st_size - OUTPUT_TAIL_BYTES)
        return os.pread(self._output, OUTPUT_TAIL_BYTES, start).decode(errors="replace").strip()

    def close(self) -> None:
        """End the worker at once. That is safe at any moment: files are published whole or not at all."""
        if self.alive:
            self._forkserver.kill(self.pid)
        self.alive = False
        self.connection.close()
        self._status.close()
        os.close(self._output)
