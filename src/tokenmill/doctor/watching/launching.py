"""Starts the command and prepares this process to watch it: signals, orphans and file limit."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Iterator, Sequence

from tokenmill.errors import UsageError

# Signals to the doctor, which it reads one by one with their origin.
BLOCKED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGWINCH})
# Arguments of prctl.
SET_SUBREAPER, GET_SUBREAPER = 36, 37
# Makes Python print its stack when native code crashes or the doctor aborts it.
ENVIRONMENT = {"PYTHONFAULTHANDLER": "1"}


def start(command: Sequence[str], stderr: int, stdout: int | None, mask: set[signal.Signals]) -> int:
    """Starts the command with the signal settings that this process had before Python and the doctor changed them."""
    actions = [(os.POSIX_SPAWN_DUP2, stderr, 2)]
    if stdout is not None:
        actions.insert(0, (os.POSIX_SPAWN_DUP2, stdout, 1))
    try:
        return os.posix_spawnp(
            command[0],
            list(command),
            {**os.environ, **ENVIRONMENT},
            file_actions=actions,
            setsigmask=mask,
            setsigdef={signal.SIGPIPE, signal.SIGXFSZ},
        )
    except OSError as error:
        raise UsageError(f"the command cannot be run: {command[0]}", f"{error.strerror}.") from None


@contextlib.contextmanager
def subreaper() -> Iterator[None]:
    """Makes this process, instead of process 1, the parent of the command's orphans."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = ctypes.c_int(0)
    prctl(GET_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(SET_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(SET_SUBREAPER, before.value, 0, 0, 0)


@contextlib.contextmanager
def raised_file_limit() -> Iterator[None]:
    """Raises the file limit, for one pidfd per process. Use after the start: the command keeps its own limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextlib.contextmanager
def blocked_signals() -> Iterator[set[signal.Signals]]:
    """Blocks signals within a `with` block. Yields the previous mask, which the command must inherit."""
    before = {signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)}
    try:
        yield before
    finally:
        for _ in pending_signals():  # they were meant for the command
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def pending_signals() -> Iterator[signal.struct_siginfo]:
    """Yields the signals that arrived since the last call."""
    while (info := signal.sigtimedwait(BLOCKED, 0)) is not None:
        yield info
