"""Signals to the doctor while it watches: taken one by one, with where they come from, instead of ending it."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from dataclasses import dataclass

TAKEN = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGWINCH})


@dataclass(frozen=True, slots=True)
class Sent:
    """A signal that came. One from the terminal has also reached the command, which is in the same group."""

    number: int
    is_from_terminal: bool


@contextlib.contextmanager
def taken() -> Iterator[set[signal.Signals]]:
    """Hold signals back while the block runs. Gives the mask that was in force, which is the command's to have."""
    before = {signal.Signals(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)}
    try:
        yield before
    finally:
        for _ in pending():  # what came meanwhile was for the command
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def pending() -> Iterator[Sent]:
    """The signals that have come since the last call."""
    while (sent := signal.sigtimedwait(TAKEN, 0)) is not None:
        yield Sent(sent.si_signo, is_from_terminal=sent.si_code > 0)
