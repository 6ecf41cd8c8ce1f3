"""Signals to the processes of a command, at random moments."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Sequence

from tests.support.soaking.commands import Running
from tests.support.soaking.judging import Faults
from tests.support.soaking.tally import Tally

KINDS = ("group", "group", "driver", "forkserver", "worker", "worker")
SIGNALS = ("SIGKILL", "SIGKILL", "SIGKILL", "SIGTERM", "SIGHUP", "SIGINT", "SIGSTOP")
WORKER_SIGNALS = ("SIGKILL", "SIGKILL", "SIGTERM", "SIGSEGV", "SIGABRT", "SIGSTOP")
CRASHES = (signal.SIGSEGV, signal.SIGABRT)
APPEAR_SECONDS = 1.0
"""How long a worker may take to appear that is to be killed."""


def hurt(
    run: Running, rng: random.Random, seconds: float, faults: Faults, tally: Tally, *, crashes: bool = True
) -> None:
    """Send some signals to a command that takes about so long; without `crashes` none that looks like one."""
    moments = sorted(rng.uniform(0, 1.2 * seconds) for _ in range(rng.choice([0, 1, 2, 3, 4])))
    for moment in moments:
        kind = rng.choice(KINDS)
        number = signal.Signals[rng.choice(SIGNALS if kind in {"group", "driver"} else WORKER_SIGNALS)]
        if not crashes and number in CRASHES:
            number = signal.SIGKILL
        pause_seconds, choice = rng.uniform(0, 0.5), rng.random()
        if not run.until(moment):
            return
        there = _targets(run, kind)
        if not there or not run.signal(there[int(choice * len(there))], number):
            continue
        tally.add("kills", f"{number.name} {kind}")
        if number == signal.SIGSTOP:
            time.sleep(pause_seconds)
            run.signal(None, signal.SIGCONT)
        else:
            faults.allow_signal(kind, number, time.monotonic() - run.started)


def _targets(run: Running, kind: str) -> Sequence[int | None]:
    """The processes of a kind, as soon as there are some; None stands for all processes."""
    if kind == "group":
        return [None]
    end = time.monotonic() + APPEAR_SECONDS
    while not (there := run.targets(kind)) and run.going and time.monotonic() < end:
        time.sleep(0.005)
    return there
