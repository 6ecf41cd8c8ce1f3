"""Whole processes on the clock: wall time, CPU seconds, and how much of the machine others used meanwhile."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

# A round counts as disturbed if other processes used more than this share of the machine while it ran.
MAX_OTHERS = 0.05
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Timed:
    """One process: when it was started, its wall and CPU seconds to its exit, and the JSON it printed.

    `others` is the share of the machine's cores that other processes used while it ran.
    """

    began: float
    seconds: float
    cpu_seconds: float
    others: float
    answer: dict[str, Any]


def time_process(command: list[str], **environment: str) -> Timed:
    """Run a process to its end; one that fails ends the benchmark with its message."""
    os.sync()
    busy, own = _busy_seconds(), _children_seconds()
    began, started = time.time(), time.perf_counter()
    # An installed package has bytecode, so the first run writes it.
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=inherited | environment)
    seconds = time.perf_counter() - started
    busy, own = _busy_seconds() - busy, _children_seconds() - own
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:6])} ... ended with {done.returncode}:\n{done.stderr[-3000:]}")
    others = max(0.0, busy - own) / seconds / (os.cpu_count() or 1)
    return Timed(began, seconds, own, others, json.loads(done.stdout.splitlines()[-1]))


def tokenmill_command(name: str) -> list[str]:
    """The command as a user would run it, with its result as JSON."""
    return [sys.executable, "-m", "tokenmill", name, "--json", "--quiet"]


def _children_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _busy_seconds() -> float:
    """The CPU seconds of all processes of the machine, and those that the host took."""
    with open("/proc/stat", encoding="ascii") as file:
        user, nice, system, _idle, _wait, irq, soft_irq, steal = map(int, file.readline().split()[1:9])
    return (user + nice + system + irq + soft_irq + steal) / TICKS
