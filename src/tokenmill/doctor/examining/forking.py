"""Forks this process, runs work in the child and determines how the child ended: done, died, outgrew, hung or slow.

A child hangs if it uses no CPU for some seconds while all its threads wait for locks. A child that sleeps or waits
for something else gets MAX_SECONDS, and then is slow. All this runs in the main thread: a watching thread would itself
be a thread at the fork.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import resource
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from tokenmill.doctor.examining.answers import Ended, Outcome, Trial
from tokenmill.doctor.examining.memory import held_bytes
from tokenmill.doctor.waits import waits_for_lock
from tokenmill.system import machine, procfs

IDLE_SECONDS = 4.0
MAX_SECONDS = 30.0
PAUSE_SECONDS = 0.005
WAITING_FOR_DISK = "D"
# The exit code of a process that faulthandler ends at its time limit.
TIMEOUT_EXIT_CODE = 1
# The first characters of the stack that faulthandler then writes.
TIMEOUT_HEADER = "Timeout ("
# The exit code of a child in which the experiment itself, not the function, failed.
INTERNAL_ERROR = 70

STACK_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


@dataclass(frozen=True, slots=True)
class Fork:
    """Where the stack of a child goes, and how large it may grow."""

    folder: str
    max_bytes: int
    idle_seconds: float = IDLE_SECONDS

    def run(self, trial: Trial, work: Callable[[], object]) -> Ended:
        """Runs the work in a forked child."""
        threads, stack = machine.threads(), stack_path(self.folder, trial)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of threads at a fork, which is what this tests
            pid = os.fork()
        if pid == 0:
            _run_child(stack, work)
        ended = self._watch(pid, Ended(trial, "done", threads))
        return msgspec.structs.replace(ended, stack=read_stack(stack))

    def _watch(self, pid: int, ended: Ended) -> Ended:
        started = last_activity = time.monotonic()
        cpu_seconds, inherited, grown = 0.0, held_bytes(os.getpid()), 0

        def end(outcome: Outcome, status: int) -> Ended:
            return msgspec.structs.replace(
                ended,
                outcome=outcome,
                status=status,
                grown_bytes=grown,
                seconds=now - started,
                idle_seconds=now - last_activity,
            )

        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            now = time.monotonic()
            if done:
                code = os.waitstatus_to_exitcode(status)
                return end("done" if code == 0 else "died", code)
            stat = procfs.stat(pid)
            if stat is None or stat.cpu_seconds > cpu_seconds or stat.state == WAITING_FOR_DISK:
                cpu_seconds, last_activity = (stat.cpu_seconds if stat is not None else cpu_seconds), now
            grown = max(grown, held_bytes(pid) - inherited)
            if grown > self.max_bytes:
                return end("outgrew", _terminate(pid, signal.SIGKILL))
            if now - last_activity > self.idle_seconds and waits_for_lock(pid):
                return end("hung", _terminate(pid, signal.SIGABRT))
            if now - started > MAX_SECONDS:
                return end("slow", _terminate(pid, signal.SIGABRT))
            time.sleep(PAUSE_SECONDS)


def dump_stack_on_crash(stack: str) -> None:
    """Writes the Python stack to a file, and no core file, when this process crashes or is aborted."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    faulthandler.enable(open(stack, "wb", buffering=0), all_threads=False)  # noqa: SIM115 - open until the end


def read_stack(path: str) -> tuple[str, ...]:
    """Returns where a process was in Python when it ended, innermost first: `tokenize (prepare.py:12)`."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            matches = [STACK_LINE.match(line.rstrip("\n")) for line in file]
    except OSError:
        return ()
    return tuple(f"{match[3]} ({match[1]}:{match[2]})" for match in matches if match is not None)


def is_timeout(path: str) -> bool:
    """Returns whether a process ended because of its own time limit."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(len(TIMEOUT_HEADER)) == TIMEOUT_HEADER


def stack_path(folder: str, trial: str) -> str:
    """Returns the file for the stack of one trial."""
    return os.path.join(folder, f"stack {trial}")


def raise_oom_score() -> None:
    """Makes this process the first choice of the OOM killer, to protect other processes."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _run_child(stack: str, work: Callable[[], object]) -> None:
    try:
        dump_stack_on_crash(stack)
        raise_oom_score()
        work()
    except BaseException:  # noqa: BLE001 - the child must never continue as a copy of the parent
        traceback.print_exc()
        os._exit(INTERNAL_ERROR)
    os._exit(0)


def _terminate(pid: int, number: int) -> int:
    """Ends a child with a signal, or with SIGKILL if it does not end soon."""
    os.kill(pid, number)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(PAUSE_SECONDS)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
