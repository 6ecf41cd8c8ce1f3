"""Starting the command to watch, and making ourselves fit to watch it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Iterator, Sequence

from tokenmill.errors import UsageError

SET_SUBREAPER, GET_SUBREAPER = 36, 37
PYTHON_SETTINGS = {"PYTHONFAULTHANDLER": "1"}
"""With it, Python prints where it was when native code crashes, or when we abort it."""


def start(command: Sequence[str], errors: int, output: int | None, mask: set[signal.Signals]) -> int:
    """Start the command, with the signals as they were before Python and we changed them."""
    actions = [(os.POSIX_SPAWN_DUP2, errors, 2)]
    if output is not None:
        actions.insert(0, (os.POSIX_SPAWN_DUP2, output, 1))
    try:
        return os.posix_spawnp(
            command[0],
            list(command),
            {**os.environ, **PYTHON_SETTINGS},
            file_actions=actions,
            setsigmask=mask,
            setsigdef={signal.SIGPIPE, signal.SIGXFSZ},
        )
    except OSError as error:
        raise UsageError(f"the command cannot be run: {command[0]}", f"{error.strerror}.") from None


@contextlib.contextmanager
def adopting() -> Iterator[None]:
    """Become the parent of the command's orphans, instead of process 1."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    before = ctypes.c_int(0)
    prctl(GET_SUBREAPER, ctypes.byref(before), 0, 0, 0)
    prctl(SET_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(SET_SUBREAPER, before.value, 0, 0, 0)


@contextlib.contextmanager
def many_files() -> Iterator[None]:
    """Allow ourselves a descriptor for each process; after the command has been started, which keeps its own limit."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
