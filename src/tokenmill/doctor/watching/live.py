"""Reports while the command runs: one line per important death, and a few lines for a hang."""

from __future__ import annotations

from collections.abc import Callable

from tokenmill.doctor.watching.deaths import Death
from tokenmill.doctor.watching.hangs import Hang
from tokenmill.humanize import count, duration, size

SHOWN_DEATHS = 3


class LiveReporter:
    """Reports only what matters: not workers that their parent ends, nor failed helper programs."""

    def __init__(self, write_line: Callable[[str], None]) -> None:
        self._write_line = write_line
        self._reported = 0

    def death(self, death: Death) -> None:
        """Reports a death if it matters."""
        if not matters(death):
            return
        self._reported += 1
        if self._reported <= SHOWN_DEATHS:
            peak = f"; peak {size(death.peak_bytes)}" if death.peak_bytes else ""
            self._write_line(f"doctor: process {death.pid} ({death.name}, {death.role}) {_describe_end(death)}{peak}")
        elif self._reported == SHOWN_DEATHS + 1:
            self._write_line("doctor: more processes die; the report will count them")

    def hang(self, hang: Hang, deaths: list[Death], stops: bool) -> None:
        """Reports a hang. `stops`: the doctor stops the command."""
        self._write_line(f"doctor: nothing has moved for {duration(hang.seconds)}")
        died = [death for death in deaths if death.role == "worker" and matters(death)]
        locked = [waiting for waiting in hang.waits if waiting.is_deadlocked]
        if died:
            self._write_line(f"doctor: worker {died[0].pid} died before, and its parent may wait for it for ever")
        elif locked:
            process = locked[0].process
            self._write_line(f"doctor: worker {process.pid} {locked[0].wait.description}")
        self._write_line(
            "doctor: stopping it" if stops else "doctor: if it should not be waiting, press Ctrl-C for the report"
        )

    def moves_again(self) -> None:
        """Reports that a hang is over."""
        self._write_line("doctor: it moves again")

    def restarts(self, parent: int, deaths: int, stops: bool) -> None:
        """Reports that a parent restarts workers endlessly."""
        self._write_line(
            f"doctor: {count(deaths, 'worker')} of process {parent} died in a row, and it goes on starting new ones"
        )
        self._write_line(
            "doctor: stopping it" if stops else "doctor: this does not end by itself: press Ctrl-C for the report"
        )


def matters(death: Death) -> bool:
    """Returns whether a death is worth a line while the command goes on."""
    if death.role == "command" or death.killer in ("parent", "doctor"):
        return False
    return death.killer in ("kernel", "crash", "limit") or death.role == "worker"


def _describe_end(death: Death) -> str:
    if death.killer == "itself":
        return f"ended with {death.why}"
    if death.killer == "unknown":
        return "is gone; how it ended is not known"
    return f"died of {death.why}" if death.killer == "crash" else f"was killed by {death.why}"
