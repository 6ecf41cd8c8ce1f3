"""Starts probe processes, reads their answers while they run, and ends those that exceed a limit."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Literal, Self, TypeVar

import msgspec

from tokenmill.doctor.examining.answers import Answer, ProbeRequest
from tokenmill.doctor.examining.forking import TIMEOUT_EXIT_CODE, WAITING_FOR_DISK, is_timeout, read_stack, stack_path
from tokenmill.doctor.examining.memory import held_bytes
from tokenmill.system import machine, procfs

PAUSE_SECONDS = 0.01
STDERR_CHARACTERS = 2000
COMMAND = "from tokenmill.doctor.examining.inside.probe import main; main()"

DECODER: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)

ProbeEnd = Literal["done", "died", "too late", "outgrew"]
AnswerT = TypeVar("AnswerT", bound=Answer)


class ProbeProcess:
    """A probe process, used as a context manager. `end` is set once it has been waited for."""

    def __init__(self, request: ProbeRequest, *, hash_seed: int, max_bytes: int) -> None:
        self.request = request
        self.max_bytes = max_bytes
        os.makedirs(request.folder, exist_ok=True)
        self._stack_path = stack_path(request.folder, request.role)
        self._stderr_path = os.path.join(request.folder, "stderr")
        self.end: ProbeEnd | None = None
        self.status = 0
        self.idle_seconds = 0.0
        self._cpu_seconds, self._last_activity = 0.0, time.monotonic()
        with open(self._stderr_path, "wb") as stderr:
            self._process = subprocess.Popen(  # noqa: S603 - this Python interpreter
                [sys.executable, "-P", "-c", COMMAND, msgspec.json.encode(request).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
                env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    @property
    def stack(self) -> tuple[str, ...]:
        """Where it was in Python when it crashed or was ended."""
        return read_stack(self._stack_path)

    @property
    def stderr(self) -> str:
        """The end of its stderr."""
        with open(self._stderr_path, "rb") as file:
            return file.read().decode(errors="replace")[-STDERR_CHARACTERS:]

    def answers(self) -> list[Answer]:
        """Returns its answers so far."""
        try:
            with open(os.path.join(self.request.folder, "answers"), "rb") as file:
                lines = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [DECODER.decode(line) for line in lines if line.endswith(b"\n")]

    def answer(self, kind: type[AnswerT]) -> AnswerT | None:
        """Returns its first answer of one kind, or None."""
        return next((answer for answer in self.answers() if isinstance(answer, kind)), None)

    def wait_for(self, kind: type[AnswerT], seconds: float) -> AnswerT | None:
        """Returns its first answer of one kind, or None if it ends first. Ends it after `seconds`."""
        until = time.monotonic() + seconds
        while self._process.poll() is None:
            answer = self.answer(kind)
            if answer is not None:
                return answer
            self._enforce_limits(until)
        self._record_end()
        return self.answer(kind)

    def wait(self, seconds: float) -> None:
        """Waits until it ends. Ends it after `seconds`."""
        until = time.monotonic() + seconds
        while self._process.poll() is None:
            self._enforce_limits(until)
        self._record_end()

    def _enforce_limits(self, until: float) -> None:
        if held_bytes(self._process.pid) > self.max_bytes:
            self.end = self.end or "outgrew"
            self._process.kill()
        self._update_idle_seconds()
        if time.monotonic() > until:
            self.end = self.end or "too late"
            self._process.send_signal(signal.SIGABRT)  # makes it write its stack
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
            self._process.kill()
        time.sleep(PAUSE_SECONDS)

    def _update_idle_seconds(self) -> None:
        now, stat = time.monotonic(), procfs.stat(self._process.pid)
        if stat is not None and (stat.cpu_seconds > self._cpu_seconds or stat.state == WAITING_FOR_DISK):
            self._cpu_seconds, self._last_activity = stat.cpu_seconds, now
        self.idle_seconds = now - self._last_activity

    def _record_end(self) -> None:
        self.status = self._process.returncode
        if self.status == TIMEOUT_EXIT_CODE and self.stack and is_timeout(self._stack_path):
            self.end = "too late"
        self.end = self.end or ("died" if self.status else "done")


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Yields a temporary folder for an examination, on another disk if the default one is full."""
    default = tempfile.gettempdir()
    with_space = [
        path
        for path in (default, "/dev/shm", "/var/tmp")  # noqa: S108
        if os.path.isdir(path) and machine.free_disk_bytes(path) > 10 << 20
    ]
    with tempfile.TemporaryDirectory(prefix="tokenmill-doctor-", dir=next(iter(with_space), default)) as path:
        yield path
