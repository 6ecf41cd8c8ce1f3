"""Forks this process, lets the child do something, and tells how it ended: done, dead, grown too large, or hung.

A child hangs if it uses no processor time for some seconds while each of its threads waits for a lock. One that only
sleeps, or waits for something else, is given more time, and is slow if it is not done then.
The first thread does all this: another one would be a thread at the fork.
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

from tokenmill.doctor.examining.answers import Ended, Outcome, Place
from tokenmill.doctor.examining.memory import held_bytes
from tokenmill.doctor.waits import waits_for_lock
from tokenmill.system import machine, procfs

IDLE_SECONDS = 4.0
MAX_SECONDS = 30.0
PAUSE_SECONDS = 0.005
WAITING_FOR_DISK = "D"
TIMED_OUT = 1
TIMEOUT = "Timeout ("
"""How faulthandler ends a process, and begins its stack, when time is over."""

STACK_LINE = re.compile(r'^  File "(.*)", line (\d+) in (.*)$')


@dataclass(frozen=True, slots=True)
class Fork:
    """Where the stack of a child goes, and how large it may grow."""

    folder: str
    most_bytes: int
    idle_seconds: float = IDLE_SECONDS

    def run(self, place: Place, work: Callable[[], object]) -> Ended:
        """Do the work in a forked child."""
        threads, stack = machine.threads(), stack_path(self.folder, place)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Python warns of threads at a fork: that is what is being tried
            pid = os.fork()
        if pid == 0:
            _be_child(stack, work)
        ended = self._watch(pid, Ended(place, "done", threads))
        return msgspec.structs.replace(ended, stack=read_stack(stack))

    def _watch(self, pid: int, ended: Ended) -> Ended:
        started = moved = time.monotonic()
        used, inherited, grown = 0.0, held_bytes(os.getpid()), 0

        def end(outcome: Outcome, status: int) -> Ended:
            return msgspec.structs.replace(
                ended,
                outcome=outcome,
                status=status,
                grown_bytes=grown,
                seconds=now - started,
                idle_seconds=now - moved,
            )

        while True:
            done, status = os.waitpid(pid, os.WNOHANG)
            now = time.monotonic()
            if done:
                code = os.waitstatus_to_exitcode(status)
                return end("done" if code == 0 else "died", code)
            seen = procfs.stat(pid)
            if seen is None or seen.cpu_seconds > used or seen.state == WAITING_FOR_DISK:
                used, moved = (seen.cpu_seconds if seen is not None else used), now
            grown = max(grown, held_bytes(pid) - inherited)
            if grown > self.most_bytes:
                return end("outgrew", _end(pid, signal.SIGKILL))
            if now - moved > self.idle_seconds and waits_for_lock(pid):
                return end("hung", _end(pid, signal.SIGABRT))
            if now - started > MAX_SECONDS:
                return end("slow", _end(pid, signal.SIGABRT))
            time.sleep(PAUSE_SECONDS)


def watch_this_process(stack: str) -> None:
    """Write the Python stack to a file when this process crashes or is aborted, and no core file."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    faulthandler.enable(open(stack, "wb", buffering=0), all_threads=False)  # noqa: SIM115 - open until the end


def read_stack(path: str) -> tuple[str, ...]:
    """Where a process was in Python when it ended, innermost first: `tokenize (prepare.py:12)`."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            matches = [STACK_LINE.match(line.rstrip("\n")) for line in file]
    except OSError:
        return ()
    return tuple(f"{match[3]} ({match[1]}:{match[2]})" for match in matches if match is not None)


def is_timeout(path: str) -> bool:
    """Whether a process ended because its own time limit was over."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read(len(TIMEOUT)) == TIMEOUT


def stack_path(folder: str, place: str) -> str:
    """The file for the stack of one experiment."""
    return os.path.join(folder, f"stack {place}")


def die_first() -> None:
    """Ask the kernel to take this process first if memory runs out, and not somebody else's."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def _be_child(stack: str, work: Callable[[], object]) -> None:
    try:
        watch_this_process(stack)
        die_first()
        work()
    except BaseException:  # noqa: BLE001 - nothing may go on from here in the copy of the parent
        traceback.print_exc()
        os._exit(70)
    os._exit(0)


def _end(pid: int, with_signal: int) -> int:
    """End a child, and by force if it does not end soon."""
    os.kill(pid, with_signal)
    until = time.monotonic() + 2
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(PAUSE_SECONDS)
    os.kill(pid, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
