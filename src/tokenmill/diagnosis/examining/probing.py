"""Runs a probe process, reads its answers while it runs, and ends it if it exceeds a limit.

The main probe forks a worker. From then on the limits are those of the worker.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from typing import Literal, TypeVar

import msgspec

from tokenmill.diagnosis.examining.answers import Answer, Ended, Forked, Loaded, ProbeRequest
from tokenmill.diagnosis.waits import waits_for_lock
from tokenmill.system import procfs

# The script must be loaded within this time.
LOAD_SECONDS = 60.0
# Each later answer must come within this time.
ANSWER_SECONDS = 30.0
# A process that waits for locks and uses no CPU for this long hangs.
IDLE_SECONDS = 4.0
PAUSE_SECONDS = 0.01
STDERR_CHARACTERS = 2000
COMMAND = "from tokenmill.diagnosis.examining.inside.probe import main; main()"
WAITING_FOR_DISK = "D"
STACK_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)

DECODER: msgspec.json.Decoder[Answer] = msgspec.json.Decoder(Answer)

# "hung": it waited for a lock that no thread could release. "slow": it gave no answer in time.
ProbeEnd = Literal["done", "died", "hung", "slow", "outgrew"]
AnswerT = TypeVar("AnswerT", bound=Answer)


class ProbeProcess:
    """A probe process that has run to its end: its answers, and how it (or the worker that it forked) ended.

    It may hold `max_bytes`, and a worker that it forks may hold `worker_bytes` more.
    """

    def __init__(self, request: ProbeRequest, max_bytes: int, worker_bytes: int) -> None:
        self._request = request
        self._max_bytes, self._worker_bytes = max_bytes, worker_bytes
        self.answers: list[Answer] = []
        self._cpu_seconds = 0.0
        self._last_answer = self._last_activity = time.monotonic()
        with open(request.file("stderr"), "wb") as stderr:
            self._process = subprocess.Popen(  # noqa: S603 - this Python interpreter
                [sys.executable, "-P", "-c", COMMAND, msgspec.json.encode(request).decode()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
        try:
            exceeded = self._wait()
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._read_answers()
        ended = self.first(Ended)
        self.status = ended.status if ended is not None else self._process.returncode
        self.end: ProbeEnd = exceeded or ("died" if self.status else "done")

    def all(self, kind: type[AnswerT]) -> list[AnswerT]:
        """Returns its answers of one kind."""
        return [answer for answer in self.answers if isinstance(answer, kind)]

    def first(self, kind: type[AnswerT]) -> AnswerT | None:
        """Returns its first answer of one kind, or None."""
        return next((answer for answer in self.answers if isinstance(answer, kind)), None)

    @property
    def stack(self) -> tuple[str, ...]:
        """Where it was in Python when it crashed or was ended, innermost first: `tokenize (prepare.py:12)`."""
        return tuple(f"{name} ({file}:{line})" for file, line, name in STACK_LINE.findall(self._read("stack")))

    @property
    def stderr(self) -> str:
        """The end of its stderr."""
        return self._read("stderr")[-STDERR_CHARACTERS:]

    def _wait(self) -> ProbeEnd | None:
        """Waits until the process ends. Returns the limit for which it was ended, or None."""
        exceeded: ProbeEnd | None = None
        while self._process.poll() is None and exceeded is None:
            time.sleep(PAUSE_SECONDS)
            self._read_answers()
            exceeded = self._exceeded()
        self.idle_seconds = time.monotonic() - self._last_activity
        if exceeded is not None:
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                # SIGABRT makes it write its stack.
                os.kill(self._worker_pid, signal.SIGKILL if exceeded == "outgrew" else signal.SIGABRT)
                self._process.wait(2)
        return exceeded

    @property
    def _worker_pid(self) -> int:
        forked = self.first(Forked) if self.first(Ended) is None else None
        return self._process.pid if forked is None else forked.pid

    def _read(self, name: str) -> str:
        try:
            with open(self._request.file(name), encoding="utf-8", errors="replace") as file:
                return file.read()
        except FileNotFoundError:
            return ""

    def _read_answers(self) -> None:
        complete = [line for line in self._read("answers").splitlines(keepends=True) if line.endswith("\n")]
        if len(complete) > len(self.answers):
            self.answers = [DECODER.decode(line) for line in complete]
            self._last_answer = time.monotonic()

    def _exceeded(self) -> ProbeEnd | None:
        """Returns the limit that the process exceeds, or None."""
        pid, now = self._worker_pid, time.monotonic()
        held_bytes, max_bytes = _held_bytes(pid), self._max_bytes
        if pid != self._process.pid:
            held_bytes, max_bytes = held_bytes - _held_bytes(self._process.pid), self._worker_bytes
        if held_bytes > max_bytes:
            return "outgrew"
        stat = procfs.stat(pid)
        if stat is None or stat.cpu_seconds != self._cpu_seconds or stat.state == WAITING_FOR_DISK:
            self._cpu_seconds, self._last_activity = (0.0 if stat is None else stat.cpu_seconds), now
        is_loaded = self.first(Loaded) is not None
        if is_loaded and now - self._last_activity > IDLE_SECONDS and waits_for_lock(pid):
            return "hung"
        return "slow" if now - self._last_answer > (ANSWER_SECONDS if is_loaded else LOAD_SECONDS) else None


def _held_bytes(pid: int) -> int:
    return procfs.held_bytes(procfs.status(pid))
