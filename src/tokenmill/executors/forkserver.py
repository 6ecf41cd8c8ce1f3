"""The process that workers come from: clean, with the libraries loaded once, and nothing else going on in it.

Loading the libraries takes over a second. Forking a worker after that takes milliseconds, be it the first, the
hundredth or the replacement of a dead one. Forking is safe here, and only here: this process runs none of the user's
code and has one thread. If a library has started another one all the same, workers are started anew, not forked.
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

REQUEST = struct.Struct("=cq")
"""What is asked for, and a number: `s` starts a worker, with three descriptors that come along, and answers with the
number; `k` kills the process of that number."""

ENVIRONMENT = {
    # One process per core leaves no core for a library's own threads, and a fork would not take them along.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}


def main(control_descriptor: int, lifeline_descriptor: int, parent: int, preload: list[str]) -> None:
    """Load the modules, then start and kill workers as asked, and tell how they end, until the parent is gone."""
    worker.die_with(parent)
    startup.skip_pandas()
    # Ctrl-C reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for module in preload:
        with contextlib.suppress(ImportError):  # whoever needs it will say so
            importlib.import_module(module)
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
        """Answer requests until there is nobody left to make them."""
        with contextlib.suppress(ConnectionError):
            while self._serve_one():
                pass
        for pid in self._workers:
            os.kill(pid, signal.SIGKILL)
        for _ in self._workers:
            os.wait()
        os._exit(0)  # nothing is left to tidy up, and the parent waits

    def _serve_one(self) -> bool:
        control = self._control.fileno()
        ready, _, _ = select.select([control, self._woken], [], [])
        if self._woken in ready:
            os.read(self._woken, 4096)
            self._tell_ends()
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
        except OSError as error:  # a limit of processes, files or memory: the parent names it
            self._answers.send(("refused", number, error.errno))
            return
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self._workers.add(pid)
        self._answers.send(("started", number, pid))

    def _fork(self, work_descriptor: int, output_descriptor: int, slate_descriptor: int) -> int:
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
            worker.serve(work_descriptor, slate_descriptor, self._lifeline, forkserver)
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except BaseException:  # noqa: BLE001 - the border: nothing of the forkserver may run on in a worker
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _spawn(self, work_descriptor: int, output_descriptor: int, slate_descriptor: int) -> int:
        command = interpreter("worker", "serve", work_descriptor, slate_descriptor, self._lifeline, os.getpid())
        kept = (work_descriptor, slate_descriptor, self._lifeline)
        return subprocess.Popen(command, pass_fds=kept, stdout=output_descriptor, stderr=output_descriptor).pid  # noqa: S603

    def _tell_ends(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if not pid:
                    return
                self._workers.discard(pid)
                end = (os.waitstatus_to_exitcode(status), machine.peak_bytes(usage))
                self._answers.send(("ended", pid, end))


def interpreter(module: str, function: str, *arguments: Any) -> list[str]:
    """The command that runs a function of this package in a new interpreter that finds what this one finds.

    `-P` because the working directory is full of data, and none of it is code.
    """
    code = (
        "import sys, json; path, arguments = json.loads(sys.argv[1]); sys.path[:] = path;"
        f"from tokenmill.executors.{module} import {function}; {function}(*arguments)"
    )
    return [sys.executable, "-P", "-c", code, json.dumps([sys.path, arguments])]
