"""How a command may end that had to bear certain faults."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.support.soaking.commands import Ending
from tests.support.soaking.tally import Tally

BUG = re.compile(r"This is a bug|Traceback \(most recent call last\)|Fatal Python error: init_import_site")
DEATH = r"SIG[A-Z]+|died|was killed|process .* ended"
POLITE = {signal.SIGTERM, signal.SIGHUP, signal.SIGINT}
INTERRUPTED = 130
STARTING_SECONDS = 0.6
"""So long a command may not have loaded its first module; see `_judge_bug`."""


@dataclass
class Faults:
    """What an attempt had to bear, and how it may therefore end."""

    reasons: list[str] = field(default_factory=list)
    signals: list[tuple[str, signal.Signals, float]] = field(default_factory=list)
    codes: set[int | None] = field(default_factory=lambda: {0})

    def allow(self, reason: str, *codes: int) -> None:
        """It may end with these codes, and then has to say so."""
        self.reasons.append(reason)
        self.codes |= set(codes)

    def allow_signal(self, kind: str, number: signal.Signals, seconds: float) -> None:
        """A process of that kind was sent a signal when the command had run for so long."""
        self.signals.append((kind, number, seconds))
        if kind in {"forkserver", "worker"}:
            self.allow(DEATH, 1, 75)
        else:
            self.codes |= {INTERRUPTED, -number} if number in POLITE else {-number}


def judge(ending: Ending, faults: Faults, tally: Tally) -> Iterator[tuple[str, str]]:
    """What is wrong with an ending: verdicts and sentences."""
    told, code = ending.stderr, ending.exit_code
    _count(ending, tally)
    if ending.left_behind:
        yield "LEFTOVERS", f"processes {ending.left_behind} after {faults}"
    if code is None:
        yield "HUNG", f"{faults}: {told[-2000:]}"
    elif BUG.search(told):
        yield from _judge_bug(told, faults, tally)
    elif code not in faults.codes:
        yield "UNEXPECTED", f"exit code {code} after {faults}: {told[-2000:]}"
    elif code in {1, 2, 3} and not any(re.search(reason, told) for reason in faults.reasons):
        yield "UNNAMED", f"exit code {code} after {faults}: {told[-2000:]}"
    elif code == INTERRUPTED and "interrupted: committed work is kept" not in told:
        yield "UNNAMED", f"interrupted without a word: {told[-500:]}"


def _count(ending: Ending, tally: Tally) -> None:
    told = ending.stderr
    if "No space left on device" in told:
        tally.add("disk full", "while exporting" if "export" in told.rpartition("error:")[0] else "while preparing")
    tally.add("deaths told", "of workers", len(re.findall(r"^worker \d+ ", told, re.MULTILINE)))
    tally.add("endings", str(ending.exit_code))


def _judge_bug(told: str, faults: Faults, tally: Tally) -> Iterator[tuple[str, str]]:
    """An interpreter that is told to stop while it starts shows a traceback of its own; nothing can be done."""
    starting = any(seconds < STARTING_SECONDS and number in POLITE for _, number, seconds in faults.signals)
    if starting and "KeyboardInterrupt" in told.rstrip()[-500:] and "This is a bug" not in told:
        tally.add("endings", "interrupted while Python starts")
    else:
        yield "TRACEBACK", f"{faults}: {told[-3000:]}"
