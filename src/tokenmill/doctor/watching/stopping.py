"""Stops a command that hangs: makes each Python process print its stack, then kills all processes."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

from tokenmill.doctor.watching import tracebacks
from tokenmill.doctor.watching.processes import Process
from tokenmill.doctor.watching.stderr import StderrRelay
from tokenmill.doctor.watching.tree import ProcessTree
from tokenmill.system import procfs

# Only this many processes print their stack: the others are probably at the same line.
MAX_STACKS = 8
# A process has this long to print its stack.
STACK_SECONDS = 2.0
END_SECONDS = 5.0
ROLE_ORDER = {"worker": 0, "command": 1, "program": 2, "service": 3}


@dataclass(frozen=True, slots=True)
class Stack:
    """Where a process was when it was stopped."""

    process: Process
    failure: tracebacks.Failure


def stop(tree: ProcessTree, relay: StderrRelay) -> tuple[list[Stack], list[Process]]:
    """Stops all processes. Returns the stacks of the first MAX_STACKS Python processes, and the ended processes."""
    by_role = sorted(tree.alive.values(), key=lambda process: ROLE_ORDER[process.role])
    for process in tree.alive.values():  # keeps parents from starting more workers
        _send(process, signal.SIGSTOP)
    ended: list[Process] = []
    stacks = []
    for process in [process for process in by_role if process.is_python and process.role != "service"][:MAX_STACKS]:
        failure = _abort_for_stack(process, tree, relay, ended)
        if failure is not None:
            stacks.append(Stack(process, failure))
    ended += _kill_all(tree)
    return stacks, ended


def _abort_for_stack(
    process: Process, tree: ProcessTree, relay: StderrRelay, ended: list[Process]
) -> tracebacks.Failure | None:
    """Aborts a process, so that Python prints its stack."""
    _drain(relay)
    before = len(tracebacks.fatal_errors(relay.text()))
    with contextlib.suppress(OSError):
        procfs.dump_no_core(process.pid)
    _send(process, signal.SIGABRT)
    _send(process, signal.SIGCONT)
    end = time.monotonic() + STACK_SECONDS
    while process.pid in tree.alive and time.monotonic() < end:
        ended += tree.wait(0.05)
    _drain(relay)
    errors = tracebacks.fatal_errors(relay.text())
    return errors[-1] if len(errors) > before else None


def _drain(relay: StderrRelay) -> None:
    end = time.monotonic() + STACK_SECONDS
    relay.drain(lambda: time.monotonic() > end)


def _kill_all(tree: ProcessTree) -> list[Process]:
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
