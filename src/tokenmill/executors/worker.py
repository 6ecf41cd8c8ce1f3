"""A worker: receive functions and items, send back what came of them.

Items are done one after the other on the main thread. Two things can go on beside it: a function that has a method
`foresee` is told of the items that wait, so that it can fetch what they need, and one that returns a future is answered
for when that is done, while the next item is being done.

A worker ends with the process it works for, however that one ends: the kernel is asked to kill it (Linux), and a thread
waits for the lifeline to close (everywhere). When memory runs out, the kernel is asked to take a worker, which costs a
retry, rather than the process that supervises it.
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
from concurrent.futures import Future, wait
from functools import partial
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any

from tokenmill.errors import TokenmillError, exit_code_of
from tokenmill.system import environment as settings
from tokenmill.system import limits, machine, status_page

MAX_PROMISED = 2
"""How many futures may be outstanding while the next item is done: what they hold lies in memory."""

WAIT_SECONDS = 600.0
"""How long a worker may wait for a future, or for an item to be foreseen, before it counts as stuck."""

_PR_SET_PDEATHSIG = 1


def serve(work_descriptor: int, slate_descriptor: int, lifeline_descriptor: int, parent: int) -> None:
    """Work for whoever holds the other end of the pipe, until it is closed."""
    die_with(parent)
    machine.raise_oom_score()
    status_page.use(status_page.StatusPage(slate_descriptor))
    threading.Thread(target=_watch, args=(lifeline_descriptor,), daemon=True).start()
    with Connection(work_descriptor) as connection, contextlib.suppress(EOFError):
        reader, answers = None, _Answers(connection)
        function = None
        while True:
            kind, *told = connection.recv() if reader is None else reader.next()
            if kind == "item":
                answers.work(function, *told)
                continue
            function, ahead, environment = told
            settings.replace(environment)
            if ahead and reader is None and hasattr(function, "prefetch"):
                reader = _MessageReader(connection, function)


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; end at once if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _watch(lifeline_descriptor: int) -> None:
    os.read(lifeline_descriptor, 1)  # returns when the last writer is gone
    os._exit(1)


class _MessageReader:
    """Receives messages on a thread of its own, so that items can be foreseen while others are being done."""

    def __init__(self, connection: Connection, function: Any) -> None:
        self._connection = connection
        self._foresee = getattr(function, "prefetch", None)
        self._messages: SimpleQueue[Any] = SimpleQueue()
        self._asked = 0
        self._passed_on = 0
        threading.Thread(target=self._read, daemon=True).start()

    def next(self) -> Any:
        """The next message, for the main thread; raises what came instead of it."""
        self._asked += 1
        message = self._messages.get()
        if isinstance(message, BaseException):
            raise message
        return message

    def _read(self) -> None:
        try:
            while True:
                self._pass_on(self._connection.recv())
        except BaseException as error:  # noqa: BLE001 - nothing is lost: the main thread raises it
            self._messages.put(error)

    def _pass_on(self, message: Any) -> None:
        kind, *_, last = message
        is_at_another = self._asked <= self._passed_on
        if kind == "function":
            settings.replace(last)  # what is foreseen of the next items needs them at once
            self._foresee = getattr(message[1], "prefetch", None) if message[2] else None
        elif self._foresee is not None and is_at_another:
            with contextlib.suppress(BaseException):  # the call will meet it again
                self._foresee(last)
        self._passed_on += 1
        self._messages.put(message)


class _Answers:
    """Does items, and answers for each: at once, or when the future that it returned is done."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sending = threading.Lock()
        self._promised: list[tuple[int, Future[Any]]] = []

    def work(self, function: Any, number: int, item: Any) -> None:
        """Do an item; its answer is sent by now, or will be."""
        started = time.monotonic()
        status_page.set_item(number)
        try:
            value = function(item)
            answer = None if isinstance(value, Future) else _done(number, started, value)
        except Exception as error:  # noqa: BLE001 - the border: whatever went wrong is told, none of it is lost
            answer = _failed(number, started, error, status_page.last_status())
        if answer is None:
            self._promise(number, started, value)
        else:
            self._send(answer)
        status_page.set_item(0, WAIT_SECONDS)

    def _promise(self, number: int, started: float, future: Future[Any]) -> None:
        self._promised = [promise for promise in self._promised if not promise[1].done()]
        self._promised.append((number, future))
        future.add_done_callback(partial(self._keep, number, started))
        if len(self._promised) > MAX_PROMISED:
            oldest, awaited = self._promised.pop(0)
            status_page.set_item(oldest, WAIT_SECONDS)
            wait([awaited])

    def _keep(self, number: int, started: float, future: Future[Any]) -> None:
        """Answer for an item whose future is done; called by whichever thread has done it."""
        try:
            answer = _done(number, started, future.result())
        except BaseException as error:  # noqa: BLE001 - the border: nobody else would hear of it
            answer = _failed(number, started, error, b"")
        with contextlib.suppress(OSError):  # if nobody is there to hear it, the main thread learns of that
            self._send(answer)

    def _send(self, answer: bytes) -> None:
        with self._sending:
            self._connection.send_bytes(answer)


def _done(number: int, started: float, value: Any) -> bytes:
    return _packed(number, started, "done", value)


def _failed(number: int, started: float, error: BaseException, note: bytes) -> bytes:
    trace = "".join(traceback.format_exception(error))
    error = limits.reached_by(error) or error
    explained = isinstance(error, TokenmillError)
    told = (type(error).__name__, str(error), explained, trace, note, exit_code_of(error))
    return _packed(number, started, "failed", *told)


def _packed(number: int, started: float, *outcome: Any) -> bytes:
    peak = machine.peak_bytes(resource.getrusage(resource.RUSAGE_SELF))
    return pickle.dumps((number, time.monotonic() - started, peak, machine.resident_bytes(), *outcome))
