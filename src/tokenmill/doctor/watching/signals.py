"""Blocks signals to the doctor while it watches and reads them one by one, with their origin."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass

BLOCKED = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGWINCH})


@dataclass(frozen=True, slots=True)
class ReceivedSignal:
    """A received signal. One from the terminal has also reached the command, which is in the same process group."""

    number: int
    is_from_terminal: bool


@contextlib.contextmanager
def blocked() -> Iterator[set[signal.Signals]]:
    """Blocks signals in this block. Yields the previous mask, which the command must inherit."""
    before = {signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, BLOCKED)}
    try:
        yield before
    finally:
        for _ in pending():  # they were meant for the command
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def pending() -> Iterator[ReceivedSignal]:
    """Yields the signals that arrived since the last call."""
    while (info := signal.sigtimedwait(BLOCKED, 0)) is not None:
        yield ReceivedSignal(info.si_signo, is_from_terminal=info.si_code > 0)
