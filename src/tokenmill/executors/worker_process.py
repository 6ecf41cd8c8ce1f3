"""The parent's handles of its processes: the fork server, and the workers that come from it."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from tokenmill.executors.forkserver import ENVIRONMENT, REQUEST, interpreter
from tokenmill.executors.outcomes import Cause, ExitReport
from tokenmill.executors.retries import Attempt
from tokenmill.system import environment, machine, status_page
from tokenmill.system.limits import NO_PROCESS

# Bytes of a worker's output that a death report shows.
OUTPUT_TAIL_BYTES = 2000

# Bytes of a worker's output that are kept before they are thrown away: they are in memory.
MAX_OUTPUT_BYTES = 1 << 20

# Seconds that a process may take to end before it is killed.
END_SECONDS = 5.0

# Bytes that can be sent to a worker that does not read: less than the buffer of a pipe.
PIPE_BYTES = 1 << 16

# Signals that a process does not get by its own fault.
EXTERNAL_SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)


def no_process(number: int) -> OSError:
    """The error for a process that the system did not start: a limit of processes, files or memory."""
    return OSError(number, f"{NO_PROCESS}: {os.strerror(number)}")


class ForkServer:
    """Handle of the fork server. When that process dies, its workers die with it."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        self._control, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        command = interpreter("forkserver", "main", theirs.fileno(), lifeline, os.getpid(), preload)
        # Ctrl-C reaches the whole process group. The fork server starts with SIGINT blocked, because it could only
        # show a traceback while it loads its first modules. It ignores the signal before it unblocks it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                    command,
                    pass_fds=(theirs.fileno(), lifeline),
                    env={**os.environ, **ENVIRONMENT},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                )
        except OSError as error:
            raise no_process(error.errno or 0) from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(lifeline)
        self._answers = Connection(os.dup(self._control.fileno()))
        self._requests = 0
        self._pids: dict[int, int] = {}
        self._ends: dict[int, tuple[int, int]] = {}

    def start_worker(self, work: int, output: int, status: int) -> int:
        """Request a worker with these descriptors; return the number of the request, for `pid_of`."""
        self._requests += 1
        with contextlib.suppress(OSError):  # if the fork server is gone, the worker's pipe is closed, too
            socket.send_fds(self._control, [REQUEST.pack(b"s", self._requests)], [work, output, status])
        return self._requests

    @property
    def alive(self) -> bool:
        """Whether the fork server runs."""
        return self._process.poll() is None

    def held_bytes(self) -> int:
        """The memory of the fork server, which each worker inherits."""
        return machine.private_bytes_of(self._process.pid)

    def pid_of(self, number: int) -> int | None:
        """Wait for a requested worker, and return its process id; None if the fork server died before."""
        while number not in self._pids and self._receive():
            pass
        return self._pids.get(number)

    def end_of(self, pid: int) -> tuple[int, int]:
        """Wait for the end of a worker, and kill it if it takes long; exit code (negative: signal) and peak memory."""
        timer = threading.Timer(END_SECONDS, self.kill, (pid,))
        timer.start()
        while pid not in self._ends and self._receive():
            pass
        timer.cancel()
        return self._ends.pop(pid, (-signal.SIGKILL, 0))

    def kill(self, pid: int) -> None:
        """Kill a worker, if it still runs."""
        with contextlib.suppress(OSError):
            self._control.sendall(REQUEST.pack(b"k", pid))

    def _receive(self) -> bool:
        """Receive one message of the fork server; return False if it is gone."""
        try:
            kind, number, content = self._answers.recv()
        except (EOFError, OSError):
            return False
        if kind == "refused":
            raise no_process(content)
        if kind == "started":
            self._pids[number] = content
            self._ends.pop(content, None)  # of an earlier process with the same id
        else:
            self._ends[number] = content
        return True

    def close(self) -> None:
        """End the fork server and all its workers at once, and wait for their end."""
        if not self._requests:
            self._process.kill()
        self._control.close()
        self._answers.close()
        os.close(self._lifeline)
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@dataclass(frozen=True, slots=True)
class BlamedItem:
    """The item to blame for a death: its number, elapsed seconds, and the last status written for it."""

    number: int
    seconds: float
    note: bytes


class WorkerProcess:
    """Handle of a worker: its pipe, the items it holds (by number, in order), its status page, and how it ended."""

    def __init__(self, forkserver: ForkServer) -> None:
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
        self._stopped: ExitReport | None = None
        self._stopped_for: BlamedItem | None = None
        self._stopped_seconds = 0.0
        self.alive = True
        self.items: dict[int, Attempt] = {}
        self._unsent: deque[bytes] = deque()
        self._prefetches = False
        self._last_number = 0
        self._busy_since = 0.0
        self.resident_bytes = 0

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
            self.connection.send(("function", function, prefetch, environment.for_workers()))

    def give(self, attempt: Attempt) -> None:
        """Give the worker an item. If the worker is gone, the next `receive` reports it."""
        self._last_number += 1
        self._unsent.append(pickle.dumps(("item", self._last_number, attempt.item)))
        if not self.items:
            self._busy_since, self._unchanged_seconds = time.monotonic(), 0.0
        self.items[self._last_number] = attempt
        self._send_items()

    def _send_items(self) -> None:
        """Send items as far as that cannot block: the worker may itself block until its answer is read."""
        while self._unsent and (
            self._prefetches
            or len(self._unsent) == len(self.items)  # an idle worker reads
            or len(self._unsent[0]) * len(self.items) <= PIPE_BYTES
        ):
            with contextlib.suppress(OSError):
                self.connection.send_bytes(self._unsent.popleft())

    def take(self, number: int) -> Attempt:
        """Remove an item that has an outcome."""
        attempt = self.items.pop(number)
        if self._unsent and self.alive:
            self._send_items()
        return attempt

    def receive(self) -> Any:
        """The worker's answer for one of its items, starting with the item's number; None if it died."""
        self._unchanged_seconds = 0.0
        try:
            answer = None if self.unkillable else self.connection.recv()
        except (EOFError, OSError):
            answer = None
        self.alive = answer is not None
        return answer

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
        if self._stopped is not None:
            self._stopped_seconds += seconds
        elif status.number and self._unchanged_seconds > status.seconds:
            self.stop(Cause.STALLED, status.seconds)

    def stop(self, cause: Cause, limit: float) -> None:
        """Kill the worker for a cause, which its exit report will give."""
        if self._stopped is None:
            self._stopped_for = self.blamed()
            self._stopped = ExitReport(-signal.SIGKILL, cause, limit)
            self._forkserver.kill(self.pid)

    @property
    def usable(self) -> bool:
        """Whether it can take another item: it lives and was not stopped."""
        return self.alive and self._stopped is None

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
