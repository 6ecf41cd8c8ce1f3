"""The parent's handle of the fork server, the process that forks the workers (`forkserver_main.py`)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from multiprocessing.connection import Connection

from tokenmill.executors.forkserver_main import ENVIRONMENT, REQUEST, Preload, interpreter
from tokenmill.system import machine
from tokenmill.system.limits import NO_PROCESS

# Seconds that a process may take to end before it is killed.
END_SECONDS = 5.0


def no_process(number: int) -> OSError:
    """The error for a process that the system did not start: a limit of processes, files or memory."""
    return OSError(number, f"{NO_PROCESS}: {os.strerror(number)}")


class ForkServer:
    """Handle of the fork server. When that process dies, its workers die with it."""

    def __init__(self, preload: Preload) -> None:
        self._control, theirs = socket.socketpair()
        lifeline, self._lifeline = os.pipe()
        command = interpreter("forkserver_main", "main", theirs.fileno(), lifeline, os.getpid(), preload)
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
