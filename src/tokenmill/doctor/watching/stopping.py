"""Ends a command that hangs: each Python process says where it was, then all are killed."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

from tokenmill.doctor.watching import tracebacks
from tokenmill.doctor.watching.processes import Process
from tokenmill.doctor.watching.stderr import Relay
from tokenmill.doctor.watching.tree import Tree
from tokenmill.system import procfs

ASKED = 8
"""So many are asked where they are; the others will be at the same place."""

SPEAK_SECONDS = 2.0
END_SECONDS = 5.0
RANKS = {"worker": 0, "command": 1, "program": 2, "service": 3}


@dataclass(frozen=True, slots=True)
class Stack:
    """Where a process was when it was stopped."""

    process: Process
    failure: tracebacks.Failure


def stop(tree: Tree, relay: Relay) -> tuple[list[Stack], list[Process]]:
    """Stop everything. The stacks of the first few processes, and all that ended."""
    everyone = sorted(tree.alive.values(), key=lambda process: RANKS[process.role])
    for process in tree.alive.values():  # so that no parent starts another worker meanwhile
        _send(process, signal.SIGSTOP)
    ended: list[Process] = []
    stacks = []
    for process in [each for each in everyone if each.is_python and each.role != "service"][:ASKED]:
        failure = _last_words(process, tree, relay, ended)
        if failure is not None:
            stacks.append(Stack(process, failure))
    ended += _kill_all(tree)
    return stacks, ended


def _last_words(process: Process, tree: Tree, relay: Relay, ended: list[Process]) -> tracebacks.Failure | None:
    """Abort a process, upon which Python prints its stack."""
    _settle(relay)
    before = len(tracebacks.fatal_errors(relay.text()))
    with contextlib.suppress(OSError):
        procfs.dump_no_core(process.pid)
    _send(process, signal.SIGABRT)
    _send(process, signal.SIGCONT)
    end = time.monotonic() + SPEAK_SECONDS
    while process.pid in tree.alive and time.monotonic() < end:
        ended += tree.wait(0.05)
    _settle(relay)
    said = tracebacks.fatal_errors(relay.text())
    return said[-1] if len(said) > before else None


def _settle(relay: Relay) -> None:
    end = time.monotonic() + SPEAK_SECONDS
    relay.settle(lambda: time.monotonic() > end)


def _kill_all(tree: Tree) -> list[Process]:
    ended: list[Process] = []
    end = time.monotonic() + END_SECONDS
    while tree.alive and time.monotonic() < end:
        for process in tree.alive.values():
            _send(process, signal.SIGKILL)
        ended += tree.wait(0.05)
        tree.find_new()
    return ended


def _send(process: Process, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):
        if process.pidfd is not None:
            signal.pidfd_send_signal(process.pidfd, number)
        else:
            os.kill(process.pid, number)
