"""A worker process: receive functions and items, send back outcomes.

The main thread works on one item after the other. Two things can go on beside it. If the function has a method
`prefetch`, a thread calls it with the next items. If the function returns a future, the worker says that it is free,
works on the next item, and answers for that item when the future is done.

A worker ends with its parent, however that ends: the kernel kills it (Linux), and a thread waits for the lifeline to
close (everywhere). When memory runs out, the kernel should kill a worker, which costs a retry, not its supervisor.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import resource
import signal
import sys
import threading
import time
import traceback
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from tokenmill.executors.outcomes import error_record
from tokenmill.system import limits, machine, status_page, storage_settings

# Futures that may be outstanding while the worker is on its next item: their data is in memory.
MAX_PENDING = 2

# Seconds that a worker may wait for a future, or for a prefetch, before it counts as stalled.
WAIT_SECONDS = 600.0

_PR_SET_PDEATHSIG = 1


def serve(work_descriptor: int, status_descriptor: int, lifeline_descriptor: int, parent: int) -> None:
    """Work on the items that come through the pipe, until it is closed."""
    die_with(parent)
    machine.set_oom_score(500)
    status_page.use(status_page.StatusPage(status_descriptor))
    threading.Thread(target=_exit_with_lifeline, args=(lifeline_descriptor,), daemon=True).start()
    with Connection(work_descriptor) as connection, contextlib.suppress(EOFError):
        reader, answers = None, _Answers(connection)
        function = None
        while True:
            kind, *content = connection.recv() if reader is None else reader.next()
            if kind == "item":
                answers.work(function, *content)
                continue
            function, prefetch, settings = content
            storage_settings.adopt(settings)
            if prefetch and reader is None and hasattr(function, "prefetch"):
                reader = _MessageReader(connection, function)


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; exit at once if the parent is dead already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _exit_with_lifeline(descriptor: int) -> None:
    os.read(descriptor, 1)  # returns when the last writer is gone
    os._exit(1)


class _MessageReader:
    """Receives messages on a thread of its own, which prefetches items while the main thread works on others."""

    def __init__(self, connection: Connection, function: Any) -> None:
        self._connection = connection
        self._prefetch = getattr(function, "prefetch", None)
        self._messages: SimpleQueue[Any] = SimpleQueue()
        self._requested = 0
        self._forwarded = 0
        threading.Thread(target=storage_settings.bind(self._read), daemon=True).start()

    def next(self) -> Any:
        """Return the next message to the main thread, or raise the error that ended the pipe."""
        self._requested += 1
        message = self._messages.get()
        if isinstance(message, BaseException):
            raise message
        return message

    def _read(self) -> None:
        try:
            while True:
                self._forward(self._connection.recv())
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._messages.put(error)

    def _forward(self, message: Any) -> None:
        kind, *_, last = message
        is_main_busy = self._requested <= self._forwarded
        if kind == "function":
            storage_settings.adopt(last)  # a prefetch may need it before the main thread gets this message
            self._prefetch = getattr(message[1], "prefetch", None) if message[2] else None
        elif self._prefetch is not None and is_main_busy:
            with contextlib.suppress(BaseException):  # the function will meet the same error
                self._prefetch(last)
        self._forwarded += 1
        self._messages.put(message)


class _Answers:
    """Works on items, and answers for each: at once, or when the future that the function returned is done."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._pending: list[tuple[int, Future[Any]]] = []

    def work(self, function: Any, number: int, item: Any) -> None:
        """Work on an item, and send its answer now or later."""
        started = time.monotonic()
        status_page.set_item(number)
        try:
            value = function(item)
            answer = None if isinstance(value, Future) else _packed(number, started, "done", value)
        except Exception as error:  # noqa: BLE001 - the process border: every error is sent to the parent
            answer = _failed(number, started, error, status_page.last_status())
        if answer is None:
            self._await(number, started, value)
        else:
            self._send(answer)
        status_page.set_item(0, WAIT_SECONDS)

    def _await(self, number: int, started: float, future: Future[Any]) -> None:
        self._send(_packed(number, started, "free"))
        self._pending = [pending for pending in self._pending if not pending[1].done()]
        self._pending.append((number, future))
        future.add_done_callback(partial(self._complete, number, started))
        if len(self._pending) > MAX_PENDING:
            status_page.set_item(self._pending[0][0], WAIT_SECONDS)
            wait([pending[1] for pending in self._pending], return_when=FIRST_COMPLETED)

    def _complete(self, number: int, started: float, future: Future[Any]) -> None:
        """Answer for an item whose future is done; called by the thread that has done it."""
        try:
            answer = _packed(number, started, "done", future.result())
        except BaseException as error:  # noqa: BLE001 - the process border: every error is sent to the parent
            answer = _failed(number, started, error, b"")
        with contextlib.suppress(OSError):  # the main thread sees the closed pipe, too
            self._send(answer)

    def _send(self, answer: bytes) -> None:
        with self._sending:
            self._connection.send_bytes(answer)


def _failed(number: int, started: float, error: BaseException, note: bytes) -> bytes:
    trace = "".join(traceback.format_exception(error))
    return _packed(number, started, "failed", error_record(limits.reached_by(error) or error), trace, note)


def _packed(number: int, started: float, *outcome: Any) -> bytes:
    peak = machine.peak_bytes(resource.getrusage(resource.RUSAGE_SELF))
    return pickle.dumps((number, time.monotonic() - started, peak, machine.resident_bytes(), *outcome))
