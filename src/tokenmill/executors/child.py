"""A worker: receive functions and items, send back what came of them.

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
from multiprocessing.connection import Connection
from typing import Any

from tokenmill import machine, marks
from tokenmill.errors import TokenmillError

_PR_SET_PDEATHSIG = 1


def serve(work_descriptor: int, slate_descriptor: int, lifeline_descriptor: int, parent: int) -> None:
    """Work for whoever holds the other end of the pipe, until it is closed."""
    die_with(parent)
    machine.die_first()
    marks.use(marks.Slate(slate_descriptor))
    threading.Thread(target=_watch, args=(lifeline_descriptor,), daemon=True).start()
    with Connection(work_descriptor) as connection, contextlib.suppress(EOFError):
        function = None
        while True:
            kind, payload = connection.recv()
            if kind == "function":
                function = payload
            else:
                connection.send_bytes(_answer(function, payload))


def die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent dies; end at once if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _watch(lifeline_descriptor: int) -> None:
    os.read(lifeline_descriptor, 1)  # returns when the last writer is gone
    os._exit(1)


def _answer(function: Any, item: Any) -> bytes:
    started = time.monotonic()
    try:
        return _packed(started, "done", function(item))
    except Exception as error:  # noqa: BLE001 - the border: whatever went wrong is told, none of it is lost
        explained = isinstance(error, TokenmillError)
        return _packed(started, "failed", type(error).__name__, str(error), explained, traceback.format_exc())


def _packed(started: float, *outcome: Any) -> bytes:
    peak = machine.peak_bytes(resource.getrusage(resource.RUSAGE_SELF))
    return pickle.dumps((time.monotonic() - started, peak, machine.resident_bytes(), *outcome))
