"""Handles of the processes that work for the local executor: the nursery, and the workers that come from it."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from typing import IO, Any

from tokenmill import machine
from tokenmill.executors.nursery import ENVIRONMENT, REQUEST, interpreter

LAST_WORDS_BYTES = 2000

END_SECONDS = 5.0
"""How long a process that should end may take before it is killed."""

KILLED = -9


class Nursery:
    """The process that workers come from. When it dies, its workers die with it."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        self._control, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        command = interpreter("nursery", "main", theirs.fileno(), lifeline, os.getpid(), preload)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                command,
                pass_fds=(theirs.fileno(), lifeline),
                env={**os.environ, **ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )
        os.close(lifeline)
        self._answers = Connection(os.dup(self._control.fileno()))
        self._asked = 0
        self._pids: dict[int, int] = {}
        self._ends: dict[int, tuple[int, int]] = {}

    def start_worker(self, work: socket.socket, output: IO[bytes]) -> int:
        """Ask for a worker, by a number of which `pid_of` tells the process."""
        self._asked += 1
        with contextlib.suppress(OSError):  # if the nursery is gone, the worker's pipe tells
            socket.send_fds(self._control, [REQUEST.pack(b"s", self._asked)], [work.fileno(), output.fileno()])
        return self._asked

    @property
    def alive(self) -> bool:
        """Whether workers can be had."""
        return self._process.poll() is None

    def pid_of(self, number: int) -> int | None:
        """The process of a worker that was asked for, as soon as it is there; None if the nursery died before."""
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
        return self._ends.pop(pid, (KILLED, 0))

    def kill(self, pid: int) -> None:
        """Kill a worker, if it is still there."""
        with contextlib.suppress(OSError):
            self._control.sendall(REQUEST.pack(b"k", pid))

    def _listen(self) -> bool:
        try:
            kind, number, told = self._answers.recv()
        except (EOFError, OSError):
            return False
        if kind == "started":
            self._pids[number] = told
        else:
            self._ends[number] = told
        return True

    def close(self) -> None:
        """End the nursery and all its workers at once, and wait until they are gone."""
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


class WorkerProcess:
    """One worker: its pipe, the item it has, and how it ended."""

    def __init__(self, nursery: Nursery) -> None:
        ours, theirs = socket.socketpair()
        self._nursery = nursery
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        with theirs:
            self._number = nursery.start_worker(theirs, self._output)
        self.connection = Connection(ours.detach())
        self._pid: int | None = None
        self._seen_bytes = 0
        self.alive = True
        self.busy = False
        self.item: Any = None
        self.attempt = 0
        self.started = 0.0
        self.resident_bytes = 0

    @property
    def pid(self) -> int:
        """The process id, or 0 if the worker never came to be; waits until that is known."""
        if self._pid is None:
            self._pid = self._nursery.pid_of(self._number) or 0
        return self._pid

    def send_function(self, function: Any) -> None:
        """Tell the worker what to do with the items that follow. If the worker is gone, the next receive tells."""
        with contextlib.suppress(OSError):
            self.connection.send(("function", function))

    def start_item(self, item: Any, attempt: int) -> None:
        """Hand over an item. If the worker is gone, the next receive tells."""
        self.item, self.attempt, self.started, self.busy = item, attempt, time.monotonic(), True
        with contextlib.suppress(OSError):
            self.connection.send(("item", item))

    def receive(self) -> Any:
        """The worker's answer, or None if it died."""
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            self.alive = False
            return None
        self.busy = False
        return answer

    def look(self) -> None:
        """Take note of the memory that the worker has used so far."""
        self._seen_bytes = machine.peak_bytes_of(self.pid) or self._seen_bytes

    def reap(self) -> tuple[int, int]:
        """Exit code (negative: signal) and peak memory of a worker that has closed its pipe."""
        exit_code, peak = self._nursery.end_of(self.pid)
        return exit_code, peak or self._seen_bytes

    def last_words(self) -> str:
        """The end of what the worker printed: a native crash often says there what it was."""
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - LAST_WORDS_BYTES))
        return self._output.read().decode(errors="replace").strip()

    def close(self) -> None:
        """End the worker at once. That is safe at any moment: what is committed is whole."""
        if self.alive:
            self._nursery.kill(self.pid)
        self.alive = False
        self.connection.close()
        self._output.close()
