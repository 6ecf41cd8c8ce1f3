"""The worker's side of the local executor: receive functions and items, send back what came of them.

A worker ends with its parent, however the parent ends: the kernel is asked to kill it (Linux), and a thread waits for
the pipe to the parent to close (everywhere).
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import resource
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import Any

from tokenmill import machine, startup
from tokenmill.errors import TokenmillError

_PR_SET_PDEATHSIG = 1


def main(work_descriptor: int, lifeline_descriptor: int, parent: int, preload: list[str]) -> None:
    """Serve items from the parent until it closes the pipe or is gone."""
    _end_with_parent(lifeline_descriptor, parent)
    startup.skip_pandas()
    # Ctrl-C reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for module in preload:
        with contextlib.suppress(ImportError):  # whoever needs it will say so
            importlib.import_module(module)
    with Connection(work_descriptor) as connection, contextlib.suppress(EOFError):
        function = None
        while True:
            kind, payload = connection.recv()
            if kind == "function":
                function = payload
            else:
                _answer(connection, function, payload)


def _answer(connection: Connection, function: Any, item: Any) -> None:
    started = time.monotonic()
    try:
        outcome: tuple[Any, ...] = ("done", function(item))
    except Exception as error:  # noqa: BLE001 - the border: whatever went wrong is told, none of it is lost
        outcome = _failure(error)
    peak = machine.peak_bytes(resource.getrusage(resource.RUSAGE_SELF))
    used = (time.monotonic() - started, peak, machine.resident_bytes())
    try:
        connection.send((*used, *outcome))
    except OSError:  # the parent is gone
        raise
    except Exception as error:  # noqa: BLE001 - the value cannot be sent; nothing of it has been
        connection.send((*used, *_failure(error)))


def _failure(error: Exception) -> tuple[Any, ...]:
    explained = isinstance(error, TokenmillError)
    return ("failed", type(error).__name__, str(error), explained, traceback.format_exc())


def _end_with_parent(lifeline_descriptor: int, parent: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    threading.Thread(target=_watch, args=(lifeline_descriptor,), daemon=True).start()


def _watch(lifeline_descriptor: int) -> None:
    os.read(lifeline_descriptor, 1)  # returns when the parent's end is closed
    os._exit(1)
