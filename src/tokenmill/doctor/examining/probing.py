"""Starts the processes of an examination, reads their answers while they run, and ends what takes too long."""

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
from tokenmill.doctor.examining.forking import TIMED_OUT, WAITING_FOR_DISK, is_timeout, read_stack, stack_path
from tokenmill.doctor.examining.memory import held_bytes
from tokenmill.system import machine, procfs

PAUSE_SECONDS = 0.01
STDERR_CHARACTERS = 2000
COMMAND = "from tokenmill.doctor.examining.inside.probe import main; main()"

DECODER: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)

End = Literal["done", "died", "too late", "outgrew"]
Kind = TypeVar("Kind", bound=Answer)


class ProbeProcess:
    """A process that examines; use it in a `with`. `end` tells how it ended once it has been waited for."""

    def __init__(self, request: ProbeRequest, *, hash_seed: int, most_bytes: int) -> None:
        self.request = request
        self.most_bytes = most_bytes
        os.makedirs(request.folder, exist_ok=True)
        self.end: End | None = None
        self.status = 0
        self.idle_seconds = 0.0
        self._used_seconds, self._moved = 0.0, time.monotonic()
        with open(self._stderr, "wb") as stderr:
            self._process = subprocess.Popen(  # noqa: S603 - this very Python
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
        return read_stack(stack_path(self.request.folder, self.request.role))

    @property
    def stderr(self) -> str:
        """The end of what it wrote to stderr."""
        with open(self._stderr, "rb") as file:
            return file.read().decode(errors="replace")[-STDERR_CHARACTERS:]

    def answers(self) -> list[Answer]:
        """Its answers so far."""
        try:
            with open(os.path.join(self.request.folder, "answers"), "rb") as file:
                lines = file.read().splitlines(keepends=True)
        except FileNotFoundError:
            return []
        return [DECODER.decode(line) for line in lines if line.endswith(b"\n")]

    def answer(self, kind: type[Kind]) -> Kind | None:
        """Its first answer of one kind, if there is one yet."""
        return next((answer for answer in self.answers() if isinstance(answer, kind)), None)

    def wait_for(self, kind: type[Kind], seconds: float) -> Kind | None:
        """Its first answer of one kind, or None if it ends first. After that many seconds it is ended."""
        until = time.monotonic() + seconds
        while self._process.poll() is None:
            found = self.answer(kind)
            if found is not None:
                return found
            self._look_after(until)
        self._note_end()
        return self.answer(kind)

    def wait(self, seconds: float) -> None:
        """Wait until it has ended. After that many seconds it is ended."""
        until = time.monotonic() + seconds
        while self._process.poll() is None:
            self._look_after(until)
        self._note_end()

    def _look_after(self, until: float) -> None:
        if held_bytes(self._process.pid) > self.most_bytes:
            self.end = self.end or "outgrew"
            self._process.kill()
        self._look_for_movement()
        if time.monotonic() > until:
            self.end = self.end or "too late"
            self._process.send_signal(signal.SIGABRT)  # it leaves its stack
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2)
            self._process.kill()
        time.sleep(PAUSE_SECONDS)

    def _look_for_movement(self) -> None:
        now, state = time.monotonic(), procfs.stat(self._process.pid)
        if state is not None and (state.cpu_seconds > self._used_seconds or state.state == WAITING_FOR_DISK):
            self._used_seconds, self._moved = state.cpu_seconds, now
        self.idle_seconds = now - self._moved

    def _note_end(self) -> None:
        self.status = self._process.returncode
        if self.status == TIMED_OUT and self.stack and is_timeout(stack_path(self.request.folder, self.request.role)):
            self.end = "too late"
        self.end = self.end or ("died" if self.status else "done")

    @property
    def _stderr(self) -> str:
        return os.path.join(self.request.folder, "stderr")


@contextlib.contextmanager
def folder() -> Iterator[str]:
    """A folder for an examination, gone afterwards. It is elsewhere if there is no room for temporary files."""
    usual = tempfile.gettempdir()
    roomy = [
        path
        for path in (usual, "/dev/shm", "/var/tmp")  # noqa: S108
        if os.path.isdir(path) and machine.free_disk_bytes(path) > 10 << 20
    ]
    with tempfile.TemporaryDirectory(prefix="tokenmill-doctor-", dir=next(iter(roomy), usual)) as path:
        yield path
