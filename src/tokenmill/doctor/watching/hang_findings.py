"""Findings for a command that never ends: it waits forever, or restarts dying workers forever."""

from __future__ import annotations

import re

from tokenmill.doctor.causes import Finding, finding
from tokenmill.doctor.watching import exceptions, symptoms, tracebacks
from tokenmill.doctor.watching.evidence import Evidence
from tokenmill.doctor.watching.hangs import Hang, WaitingProcess
from tokenmill.doctor.watching.tracebacks import Failure, Frame
from tokenmill.humanize import count, duration

SHOWN_WAITS = 6
RUN_WITH_STOP = "Run it again with --stop-hung: then each process says at which line it waits."
POOL_THREAD = re.compile(r"^Exception in thread [^\n]*\((_handle_\w+)\):\n", re.MULTILINE)
UNPICKLABLE_EXCEPTION = (
    "An exception that a worker raised cannot be built again in the parent.",
    "Pass all its arguments to super().__init__(), or give its class a __reduce__.",
)
NEVER_NOTICED = "a multiprocessing.Pool never notices that it has lost a worker, and waits for its result for ever"


def hang_finding(evidence: Evidence, hang: Hang, lost: Finding | None) -> Finding:
    """Returns why nothing moves. `lost` is the finding for an earlier death of a worker, which then is the reason."""
    still = f"nothing has moved for {duration(hang.seconds)}"
    locked = [waiting for waiting in hang.waits if waiting.is_deadlocked]
    if lost is not None:
        return finding(lost.cause, "problem", still, *lost.evidence, NEVER_NOTICED, fix=lost.fix, title=lost.title)
    if (thread := POOL_THREAD.search(evidence.stderr)) is not None:
        return _pool_thread_finding(thread[1], tracebacks.exceptions(evidence.stderr[thread.end() :]), still)
    if locked:
        return finding("threads-before-fork", "problem", still, *_lock_evidence(locked), *_stopped_at(evidence))
    stopped_at = _stopped_at(evidence)
    fix = f"Begin where {stopped_at[0].replace(' was at', ' waits,')}." if stopped_at else RUN_WITH_STOP
    return finding("hang", "problem", still, *_wait_evidence(hang), *stopped_at, fix=(fix,))


def _pool_thread_finding(name: str, failures: list[Failure], still: str) -> Finding:
    """Returns the finding for a pool that waits forever because one of its own threads raised an exception."""
    messages = [exceptions.shorten(failure.summary) for failure in failures[:1]]
    is_unpicklable = name == "_handle_results" and any("__init__()" in message for message in messages)
    died = f"the pool's thread that takes the results ({name}) died, so no thread takes them any more"
    if name != "_handle_results":
        died = f"a thread of the pool ({name}) died"
    fix = ("Mend what that exception says: the pool cannot go on after it.",)
    return finding("hang", "problem", still, died, *messages, fix=UNPICKLABLE_EXCEPTION if is_unpicklable else fix)


def restart_finding(evidence: Evidence, deaths: int) -> Finding:
    """Returns why workers die as soon as they start."""
    died = f"{count(deaths, 'worker')} in a row died as soon as they were started, and new ones were started for ever"
    errors = exceptions.worker_exceptions(evidence.stderr)
    symptom = symptoms.recognize(evidence.stderr, evidence.stderr)
    shown = (*exceptions.describe_location(errors), died)
    if symptom is not None:
        return exceptions.symptom_finding(evidence, symptom, shown)
    if errors:
        return finding("own-exception", "problem", exceptions.shorten(errors[0].summary), *shown)
    return finding("exit", "problem", died)


def _lock_evidence(locked: list[WaitingProcess]) -> list[str]:
    process, description = locked[0].process, locked[0].wait.description
    more = f" (and {count(len(locked) - 1, 'other')} like it)" if len(locked) > 1 else ""
    lines = [f"pid {process.pid}, a worker, {description}{more}"]
    if (process.threads_of_parent or 0) > 1:
        lines.append(f"its parent, pid {process.parent}, ran {process.threads_of_parent} threads when it was forked")
    return lines


def _wait_evidence(hang: Hang) -> list[str]:
    lines = [f"pid {waiting.process.pid}, {waiting.process.role}, {waiting.wait.description}" for waiting in hang.waits]
    return [*lines[:SHOWN_WAITS], f"... and {len(lines) - SHOWN_WAITS} more"] if len(lines) > SHOWN_WAITS else lines


def _stopped_at(evidence: Evidence) -> list[str]:
    """Returns the user's lines at which the stopped processes were, without duplicates."""
    lines: dict[str, str] = {}
    for stack in evidence.stacks:
        for frame in _own_frames(stack.failure)[-1:]:
            lines.setdefault(str(frame), f"pid {stack.process.pid} was at {frame}")
    return list(lines.values())


def _own_frames(failure: Failure) -> list[Frame]:
    """Returns the user's frames in a stack. In a forked worker, frames before the fork belong to its parent."""
    starts = [index for index, frame in enumerate(failure.frames) if frame.function == "_bootstrap"]
    return [frame for frame in failure.frames[max(starts, default=0) :] if frame.is_users]
