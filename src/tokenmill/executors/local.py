"""Worker processes on this machine, started clean, reused and supervised.

Workers are plain child processes, not `multiprocessing` ones: nothing is forked from a parent that may run threads,
and the user's main module is never imported again. One item is in flight per worker, so a death costs that item's
retry and nothing else.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection, wait
from typing import IO, Any, Self

from tokenmill import machine
from tokenmill.executors.outcomes import Died, Done, Failed, Item, Outcome, Value, Worker

ATTEMPTS = 3
LAST_WORDS_BYTES = 2000
LOOK_SECONDS = 0.5
"""How often the memory of busy workers is looked at."""

END_SECONDS = 5.0
"""How long a worker that has closed its pipe may take to end before it is killed."""
_BOOT = (
    "import sys, json; a = json.loads(sys.argv[1]); sys.path[:] = a['path'];"
    "from tokenmill.executors.child import main; main(a['work'], a['lifeline'], a['parent'], a['preload'])"
)


class LocalExecutor:
    """Runs functions in `workers` processes; a worker that holds more than `worker_bytes` is replaced between items.

    Workers start at once and load the modules of `preload`, before there is anything to do. On Linux they end with the
    thread that started them, so make and use an executor in one thread.
    """

    def __init__(self, workers: int, worker_bytes: int | None = None, preload: tuple[str, ...] = ()) -> None:
        self._worker_bytes = worker_bytes
        self._preload = preload
        self._processes = [_Process(preload) for _ in range(workers)]
        self._oom_kills = machine.kernel_oom_kills()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.close()

    @property
    def pids(self) -> list[int]:
        """The processes at work."""
        return [process.pid for process in self._processes]

    def run(self, function: Callable[[Item], Value], items: Iterable[Item]) -> Iterator[Outcome[Item, Value]]:
        """Yield outcomes as they come; an item whose worker dies is tried again, three times in all."""
        waiting = iter(items)
        again: deque[tuple[Any, int]] = deque()
        busy: dict[Connection, _Process] = {}
        looked = time.monotonic()
        idle = [self._refreshed(process, function) for process in reversed(self._processes)]
        for process in idle:
            process.send_function(function)
        while True:
            while idle and (job := _next_job(again, waiting)) is not None:
                process = idle.pop()
                process.start_item(*job)
                busy[process.connection] = process
            if not busy:
                return
            ready = wait(list(busy), LOOK_SECONDS)
            if time.monotonic() - looked >= LOOK_SECONDS:
                for process in busy.values():
                    process.look()
                looked = time.monotonic()
            for connection in ready:
                process = busy.pop(connection)  # type: ignore[call-overload]
                outcome = self._collect(process)
                if isinstance(outcome, Died) and not outcome.final:
                    again.append((outcome.item, outcome.attempt + 1))
                idle.append(self._refreshed(process, function))
                yield outcome

    def _collect(self, process: _Process) -> Outcome[Any, Any]:
        answer = process.receive()
        if answer is None:
            return self._death(process)
        seconds, peak, process.resident_bytes, kind, *rest = answer
        worker = Worker(process.pid, _peak_bytes(process.pid) or peak)
        if kind == "done":
            return Done(process.item, rest[0], worker, seconds)
        error, message, explained, trace = rest
        return Failed(process.item, error, message, explained, trace, worker)

    def _death(self, process: _Process) -> Died[Any]:
        exit_code, peak = process.reap()
        kills = machine.kernel_oom_kills()
        out_of_memory = exit_code == -9 and kills is not None and kills > (self._oom_kills or 0)
        self._oom_kills = kills
        return Died(
            item=process.item,
            exit_code=exit_code,
            worker=Worker(process.pid, peak),
            seconds=time.monotonic() - process.started,
            attempt=process.attempt,
            final=process.attempt >= ATTEMPTS,
            kernel_out_of_memory=out_of_memory,
            last_words=process.last_words(),
        )

    def _refreshed(self, process: _Process, function: Any) -> _Process:
        """The worker itself, or a new one if it is dead, over its share of memory, or busy for a run that was left."""
        over = self._worker_bytes is not None and process.resident_bytes > self._worker_bytes
        if process.alive and not process.busy and not over:
            return process
        process.close()
        fresh = _Process(self._preload)
        fresh.send_function(function)
        self._processes[self._processes.index(process)] = fresh
        return fresh


def _next_job(again: deque[tuple[Any, int]], waiting: Iterator[Any]) -> tuple[Any, int] | None:
    if again:
        return again.popleft()
    for item in waiting:
        return item, 1
    return None


def _peak_bytes(pid: int) -> int | None:
    """The peak memory of a living process, where the system tells.

    Resource usage does not tell it well: on Linux, its peak begins with the memory of the process that started it.
    """
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as file:
        for line in file:
            if line.startswith(b"VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


class _Process:
    """One worker process: its pipe, the item it has, and how it ended."""

    def __init__(self, preload: tuple[str, ...]) -> None:
        ours, theirs = socket.socketpair()
        lifeline_theirs, self._lifeline = os.pipe()
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        arguments = {
            "path": sys.path,
            "work": theirs.fileno(),
            "lifeline": lifeline_theirs,
            "parent": os.getpid(),
            "preload": preload,
        }
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter
                # -P: the working directory is full of data, and none of it is code.
                [sys.executable, "-P", "-c", _BOOT, json.dumps(arguments)],
                pass_fds=(theirs.fileno(), lifeline_theirs),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
            )
        os.close(lifeline_theirs)
        self.connection = Connection(ours.detach())
        self.pid = self._process.pid
        self._inherited_bytes = machine.peak_bytes(resource.getrusage(resource.RUSAGE_SELF))
        self._seen_bytes = 0
        self.alive = True
        self.busy = False
        self.item: Any = None
        self.attempt = 0
        self.started = 0.0
        self.resident_bytes = 0

    def send_function(self, function: Any) -> None:
        """Tell the worker what to do with the items that follow. If the worker is gone, the next receive tells."""
        with contextlib.suppress(OSError):
            self.connection.send(("function", function))

    def start_item(self, item: Any, attempt: int) -> None:
        """Hand over an item. If the worker is gone, the next receive tells."""
        self.item, self.attempt, self.started, self.busy = item, attempt, time.monotonic(), True
        self.look()
        with contextlib.suppress(OSError):
            self.connection.send(("item", item))

    def look(self) -> None:
        """Take note of the memory that the worker has used so far."""
        self._seen_bytes = _peak_bytes(self.pid) or self._seen_bytes

    def receive(self) -> Any:
        """The worker's answer, or None if it died."""
        try:
            answer = self.connection.recv()
        except (EOFError, OSError):
            self.alive = False
            return None
        self.busy = False
        return answer

    def reap(self) -> tuple[int, int]:
        """Wait for the end of a worker that has closed its pipe; its exit code (negative: signal) and peak memory.

        If the peak is hidden by what was inherited, it is the one last seen.
        """
        impatience = threading.Timer(END_SECONDS, os.kill, (self.pid, signal.SIGKILL))
        impatience.start()
        try:
            _, status, usage = os.wait4(self.pid, 0)
        finally:
            impatience.cancel()
        self._process.returncode = os.waitstatus_to_exitcode(status)
        peak = machine.peak_bytes(usage)
        return self._process.returncode, peak if peak > self._inherited_bytes else self._seen_bytes or peak

    def last_words(self) -> str:
        """The end of what the worker printed: a native crash often says there what it was."""
        self._output.seek(0, os.SEEK_END)
        self._output.seek(max(0, self._output.tell() - LAST_WORDS_BYTES))
        return self._output.read().decode(errors="replace").strip()

    def close(self) -> None:
        """End the worker at once. That is safe at any moment: what is committed is whole."""
        self.alive = False
        self.connection.close()
        os.close(self._lifeline)
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()
        self._output.close()
