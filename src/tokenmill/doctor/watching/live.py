"""What the doctor says while the command runs: a line for each death that matters, and for a hang."""

from __future__ import annotations

from collections.abc import Callable

from tokenmill.doctor.watching.deaths import Death
from tokenmill.doctor.watching.hangs import Hang
from tokenmill.humanize import count, duration, size

SHOWN_DEATHS = 3


class Speaker:
    """Says little: not of workers that their parent ends, and not of helpers that failed, which scripts handle."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._deaths = 0

    def death(self, death: Death) -> None:
        """A process has died."""
        if not matters(death):
            return
        self._deaths += 1
        if self._deaths <= SHOWN_DEATHS:
            peak = f"; peak {size(death.peak_bytes)}" if death.peak_bytes else ""
            self._say(f"doctor: process {death.pid} ({death.name}, {death.role}) {_how(death)}{peak}")
        elif self._deaths == SHOWN_DEATHS + 1:
            self._say("doctor: more processes die; the report will count them")

    def hang(self, hang: Hang, deaths: list[Death], stops: bool) -> None:
        """Nothing moves any more."""
        self._say(f"doctor: nothing has moved for {duration(hang.seconds)}")
        died = [death for death in deaths if death.role == "worker" and matters(death)]
        locked = [waiting for waiting in hang.waits if waiting.is_deadlocked]
        if died:
            self._say(f"doctor: worker {died[0].pid} died before, and its parent may wait for it for ever")
        elif locked:
            process = locked[0].process
            self._say(f"doctor: worker {process.pid} {locked[0].wait.description}")
        self._say(
            "doctor: stopping it" if stops else "doctor: if it should not be waiting, press Ctrl-C for the report"
        )

    def moves_again(self) -> None:
        """It was no hang."""
        self._say("doctor: it moves again")

    def cycle(self, parent: int, deaths: int, stops: bool) -> None:
        """Workers die for ever."""
        self._say(
            f"doctor: {count(deaths, 'worker')} of process {parent} died in a row, and it goes on starting new ones"
        )
        self._say(
            "doctor: stopping it" if stops else "doctor: this does not end by itself: press Ctrl-C for the report"
        )


def matters(death: Death) -> bool:
    """Whether a death is worth a line while the command goes on."""
    if death.role == "command" or death.killer in ("parent", "doctor"):
        return False
    return death.killer in ("kernel", "crash", "limit") or death.role == "worker"


def _how(death: Death) -> str:
    if death.killer == "itself":
        return f"ended with {death.why}"
    if death.killer == "unknown":
        return "is gone; how it ended is not known"
    return f"died of {death.why}" if death.killer == "crash" else f"was killed by {death.why}"
