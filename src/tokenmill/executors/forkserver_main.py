"""The fork server: a clean process that loads the libraries once and forks the workers.

Loading the libraries takes over a second; forking a worker after that takes milliseconds. Forking is safe in this
process only: it runs none of the user's code and has one thread. If a library has started another thread, workers are
started as new interpreters instead.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

from tokenmill.executors import worker
from tokenmill.system import machine, startup

# A request and its number. `s` starts a worker with the three descriptors sent along; the answer repeats the number.
# `k` kills the worker whose process id is the number.
REQUEST = struct.Struct("=cq")

ENVIRONMENT = {
    # One process per core leaves no core for a library's own threads, and they do not survive a fork.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


# What the fork server does before it forks: import a module, or call a function of one (its name, and arguments).
Preload = tuple[str | tuple[str, ...], ...]


def main(control_descriptor: int, lifeline_descriptor: int, parent: int, preload: Preload) -> None:
    """Preload, then start and kill workers on request and report their ends, until the parent is gone."""
    worker.die_with(parent)
    startup.skip_pandas()
    # Ctrl-C reaches the whole process group; the parent decides what to do.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for step in preload:
        module, *call = (step,) if isinstance(step, str) else step
        with contextlib.suppress(Exception if call else ImportError):  # the worker that needs it reports it
            loaded = importlib.import_module(module)
            if call:
                getattr(loaded, call[0])(*call[1:])
    with socket.socket(fileno=control_descriptor) as control:
        _ForkServerLoop(control, lifeline_descriptor).serve()


class _ForkServerLoop:
    def __init__(self, control: socket.socket, lifeline_descriptor: int) -> None:
        self._control = control
        self._lifeline = lifeline_descriptor
        self._answers = Connection(os.dup(control.fileno()))
        self._workers: set[int] = set()
        self._woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Answer requests until the parent is gone."""
        with contextlib.suppress(ConnectionError):
            while self._serve_one():
                pass
        for pid in self._workers:
            os.kill(pid, signal.SIGKILL)
        for _ in self._workers:
            os.wait()
        os._exit(0)  # the parent waits, and there is nothing to clean up

    def _serve_one(self) -> bool:
        control = self._control.fileno()
        ready, _, _ = select.select([control, self._woken], [], [])
        if self._woken in ready:
            os.read(self._woken, 4096)
            self._report_ends()
        if control not in ready:
            return True
        message, descriptors, _, _ = socket.recv_fds(self._control, REQUEST.size, 3)
        if len(message) < REQUEST.size:
            return False
        request, number = REQUEST.unpack(message)
        if request == b"s":
            self._start(number, *descriptors)
        elif number in self._workers:
            os.kill(number, signal.SIGKILL)
        return True

    def _start(self, number: int, *descriptors: int) -> None:
        try:
            pid = self._fork(*descriptors) if machine.threads() == 1 else None
            pid = pid or self._spawn(*descriptors)
        except OSError as error:  # a limit of processes, files or memory: the parent reports it
            self._answers.send(("refused", number, error.errno))
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._workers.add(pid)
        self._answers.send(("started", number, pid))

    def _fork(self, work_descriptor: int, output_descriptor: int, status_descriptor: int) -> int:
        forkserver = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._control.close()
            self._answers.close()
            os.dup2(output_descriptor, 1)
            os.dup2(output_descriptor, 2)
            worker.serve(work_descriptor, status_descriptor, self._lifeline, forkserver)
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:  # noqa: BLE001 - no code of the fork server may run on in a worker
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _spawn(self, work_descriptor: int, output_descriptor: int, status_descriptor: int) -> int:
        command = interpreter("worker", "serve", work_descriptor, status_descriptor, self._lifeline, os.getpid())
        kept = (work_descriptor, status_descriptor, self._lifeline)
        return subprocess.Popen(command, pass_fds=kept, stdout=output_descriptor, stderr=output_descriptor).pid  # noqa: S603

    def _report_ends(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    return
                self._workers.discard(pid)
                end = (os.waitstatus_to_exitcode(status), machine.peak_bytes(usage))
                self._answers.send(("ended", pid, end))


def interpreter(module: str, function: str, *arguments: Any) -> list[str]:
    """The command that runs a function of this package in a new interpreter with the same `sys.path`.

    `-P`, because modules must not be imported from the working directory, which holds data.
    """
    code = (
        "import sys, json; path, arguments = json.loads(sys.argv[1]); sys.path[:] = path;"
        f"from tokenmill.executors.{module} import {function}; {function}(*arguments)"
    )
    return [sys.executable, "-P", "-c", code, json.dumps([sys.path, arguments])]
