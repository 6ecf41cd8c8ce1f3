"""Handles of the processes that work for the local executor: the forkserver, and the workers that come from it."""

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

LAST_WORDS_BYTES = 2000
MAX_WORDS_BYTES = 1 << 20
"""How much of what a worker prints is kept before it is thrown away: it lies in memory."""

END_SECONDS = 5.0
"""How long a process that should end may take before it is killed."""

PIPE_BYTES = 1 << 16
"""How much can be sent to a worker that does not read: less than what a pipe takes in."""

BY_SOMEBODY = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT)
"""Signals that no process gets by its own doing."""


def no_process(number: int) -> OSError:
    """The error for a process that the system did not start, for a limit of processes, files or memory."""
    return OSError(number, f"{NO_PROCESS}: {os.strerror(number)}")


class ForkServer:
    """The process that workers come from. When it dies, its workers die with it."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        self._control, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        command = interpreter("forkserver", "main", theirs.fileno(), lifeline, os.getpid(), preload)
        # Ctrl-C reaches the whole group. The forkserver starts with the signal blocked: while it loads its first
        # modules it could only show a traceback. It unblocks the signal when it ignores it.
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
        self._asked = 0
        self._pids: dict[int, int] = {}
        self._ends: dict[int, tuple[int, int]] = {}

    def start_worker(self, work: int, output: int, slate: int) -> int:
        """Ask for a worker, by a number of which `pid_of` tells the process."""
        self._asked += 1
        with contextlib.suppress(OSError):  # if the forkserver is gone, the worker's pipe tells
            socket.send_fds(self._control, [REQUEST.pack(b"s", self._asked)], [work, output, slate])
        return self._asked

    @property
    def alive(self) -> bool:
        """Whether workers can be had."""
        return self._process.poll() is None

    def held_bytes(self) -> int:
        """The memory that every worker starts with, because the forkserver had it before."""
        return machine.private_bytes_of(self._process.pid)

    def pid_of(self, number: int) -> int | None:
        """The process of a worker that was asked for, as soon as it is there; None if the forkserver died before."""
        while number not in self._pids and self._listen():
            pass
        return self._pids.get(number)

    def end_of(self, pid: int) -> tuple[int, int]:
        """Exit code (negative: signal) and peak memory of a worker that is about to end; killed if it does not."""
        impatience = threading.Timer(END_SECONDS, self.kill, (pid,))
        impatience.start()
        while pid not in self._ends and self._listen():
            pass
        impatience.cancel()
        return self._ends.pop(pid, (-signal.SIGKILL, 0))

    def kill(self, pid: int) -> None:
        """Kill a worker, if it is still there."""
        with contextlib.suppress(OSError):
            self._control.sendall(REQUEST.pack(b"k", pid))

    def _listen(self) -> bool:
        try:
            kind, number, told = self._answers.recv()
        except (EOFError, OSError):
            return False
        if kind == "refused":
            raise no_process(told)
        if kind == "started":
            self._pids[number] = told
            self._ends.pop(told, None)  # of an earlier process that had the same number
        else:
            self._ends[number] = told
        return True

    def close(self) -> None:
        """End the forkserver and all its workers at once, and wait until they are gone."""
        if not self._asked:
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
    """The item, by its number, that is to blame if a worker ends now; how long it took, and what was marked of it."""

    number: int
    seconds: float
    note: bytes


class WorkerProcess:
    """One worker: its pipe, the items it has, by number, in order, what it marks, and how it ended."""

    def __init__(self, forkserver: ForkServer) -> None:
        ours, theirs = socket.socketpair()
        self._forkserver = forkserver
        self._output = status_page.shared_file("tokenmill-output")
        slate, self._slate = status_page.new_status_page()
        with theirs:
            self._number = forkserver.start_worker(theirs.fileno(), self._output, slate)
        os.close(slate)
        self.connection = Connection(ours.detach())
        self._pid: int | None = None
        self._seen_bytes = 0
        self._seen_mark = 0
        self._first_bytes: int | None = None
        self._silent_seconds = 0.0
        self._stopped: ExitReport | None = None
        self._stopped_for: BlamedItem | None = None
        self._stopped_seconds = 0.0
        self.alive = True
        self.items: dict[int, Attempt] = {}
        self._unsent: deque[bytes] = deque()
        self._reads_ahead = False
        self._given = 0
        self._busy_since = 0.0
        self.resident_bytes = 0

    @property
    def pid(self) -> int:
        """The process id, or 0 if the worker never came to be; waits until that is known."""
        if self._pid is None:
            self._pid = self._forkserver.pid_of(self._number) or 0
        return self._pid

    def send_function(self, function: Any, ahead: int) -> None:
        """Tell the worker what to do with the items that follow. If the worker is gone, the next receive tells."""
        self._reads_ahead = ahead > 0 and hasattr(function, "prefetch")
        with contextlib.suppress(OSError):
            self.connection.send(("function", function, ahead, environment.for_workers()))

    def give(self, tried: Attempt) -> None:
        """Hand over an item. If the worker is gone, the next receive tells."""
        self._given += 1
        self._unsent.append(pickle.dumps(("item", self._given, tried.item)))
        if not self.items:
            self._busy_since, self._silent_seconds = time.monotonic(), 0.0
        self.items[self._given] = tried
        self._send_items()

    def _send_items(self) -> None:
        """Send what it was given, as far as that cannot block: it may itself be waiting for its answer to be read."""
        while self._unsent and (
            self._reads_ahead
            or len(self._unsent) == len(self.items)  # it has nothing else to do than to read
            or len(self._unsent[0]) * len(self.items) <= PIPE_BYTES
        ):
            with contextlib.suppress(OSError):
                self.connection.send_bytes(self._unsent.popleft())

    def take(self, number: int) -> Attempt:
        """Take back an item that it has answered for, or that it died of."""
        tried = self.items.pop(number)
        if self._unsent and self.alive:
            self._send_items()
        return tried

    def receive(self) -> Any:
        """The worker's answer for one of its items, which begins with the item's number, or None if it died."""
        self._silent_seconds = 0.0
        try:
            answer = None if self.lost else self.connection.recv()
        except (EOFError, OSError):
            answer = None
        self.alive = answer is not None
        return answer

    def look(self, seconds: float) -> int:
        """See how the worker is after some more seconds: the memory it has for itself. Stop it if it has got stuck."""
        held = machine.private_bytes_of(self.pid)
        self._seen_bytes = max(self._seen_bytes, held)
        if self._first_bytes is None:
            self._first_bytes = self._forkserver.held_bytes()
        self._watch(seconds)
        if os.fstat(self._output).st_size > MAX_WORDS_BYTES:
            os.ftruncate(self._output, 0)
            os.lseek(self._output, 0, os.SEEK_SET)  # the worker writes on from here: the position is shared
        return max(held - self._first_bytes, 0)

    def _watch(self, seconds: float) -> None:
        mark = self._slate.read()
        self._silent_seconds = self._silent_seconds + seconds if mark.number == self._seen_mark else 0.0
        self._seen_mark = mark.number
        if self._stopped is not None:
            self._stopped_seconds += seconds
        elif mark.number and self._silent_seconds > mark.seconds:
            self.stop(Cause.SILENCE, mark.seconds)

    def stop(self, cause: Cause, limit: float) -> None:
        """Kill the worker for a reason; its death is told with it."""
        if self._stopped is None:
            self._stopped_for = self.blamed()
            self._stopped = ExitReport(-signal.SIGKILL, cause, limit)
            self._forkserver.kill(self.pid)

    @property
    def fit(self) -> bool:
        """Whether it can be given another item: it lives, and was not told to stop."""
        return self.alive and self._stopped is None

    @property
    def finished(self) -> bool:
        """Whether no more is to be had from it: it died, or was told to stop for an item it has answered for since."""
        return not self.alive or (self._stopped_for is not None and self._stopped_for.number not in self.items)

    @property
    def lost(self) -> bool:
        """Whether it was killed and does not die: it waits for a disk or a network that does not answer."""
        return self._stopped_seconds > END_SECONDS

    def reap(self) -> tuple[ExitReport, int]:
        """How a worker that has closed its pipe ended, and its peak memory."""
        if self._stopped is not None and self.lost:
            return self._stopped, self._seen_bytes
        exit_code, peak = self._forkserver.end_of(self.pid)
        cause = Cause.KILLED if -exit_code in BY_SOMEBODY else Cause.CRASH
        return self._stopped or ExitReport(exit_code, cause), peak or self._seen_bytes

    def blamed(self) -> BlamedItem:
        """The item it was stopped for; or the one it is at; or, if it is at none, the oldest it has."""
        if self._stopped_for is not None:
            return self._stopped_for
        mark = self._slate.read()
        seconds = time.monotonic() - max(mark.begun, self._busy_since)
        if mark.item in self.items:
            return BlamedItem(mark.item, seconds, mark.note)
        return BlamedItem(next(iter(self.items)), seconds, b"")

    def last_words(self) -> str:
        """The end of what the worker printed: a native crash often says there what it was."""
        start = max(0, os.fstat(self._output).st_size - LAST_WORDS_BYTES)
        return os.pread(self._output, LAST_WORDS_BYTES, start).decode(errors="replace").strip()

    def close(self) -> None:
        """End the worker at once. That is safe at any moment: what is committed is whole."""
        if self.alive:
            self._forkserver.kill(self.pid)
        self.alive = False
        self.connection.close()
        self._slate.close()
        os.close(self._output)
