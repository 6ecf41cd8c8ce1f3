"""What is wrong with a command that never ends: it waits for ever, or starts workers that die for ever."""

from __future__ import annotations

import re

from tokenmill.doctor.causes import Finding, finding
from tokenmill.doctor.watching import exceptions, symptoms, tracebacks
from tokenmill.doctor.watching.evidence import Evidence
from tokenmill.doctor.watching.hangs import Hang, Waiting
from tokenmill.doctor.watching.tracebacks import Failure, Frame
from tokenmill.humanize import count, duration

SHOWN_WAITS = 6
ASK_WHERE = "Run it again with --stop-hung: then each process says at which line it waits."
POOL_THREAD = re.compile(r"^Exception in thread [^\n]*\((_handle_\w+)\):\n", re.MULTILINE)
REBUILT = (
    "An exception that a worker raised cannot be built again in the parent.",
    "Pass all its arguments to super().__init__(), or give its class a __reduce__.",
)
NEVER_NOTICED = "a multiprocessing.Pool never notices that it has lost a worker, and waits for its result for ever"


def of_hang(seen: Evidence, hang: Hang, lost: Finding | None) -> Finding:
    """Why nothing moves. `lost` is what is wrong by the death of a worker before, which then is the reason."""
    still = f"nothing has moved for {duration(hang.seconds)}"
    locked = [waiting for waiting in hang.waits if waiting.is_deadlocked]
    if lost is not None:
        return finding(lost.cause, "problem", still, *lost.evidence, NEVER_NOTICED, fix=lost.fix, title=lost.title)
    if (thread := POOL_THREAD.search(seen.said)) is not None:
        return _of_pool_thread(thread[1], tracebacks.exceptions(seen.said[thread.end() :]), still)
    if locked:
        return finding("threads-before-fork", "problem", still, *_locked(locked), *_places(seen))
    places = _places(seen)
    fix = f"Begin where {places[0].replace(' was at', ' waits,')}." if places else ASK_WHERE
    return finding("hang", "problem", still, *_waits(hang), *places, fix=(fix,))


def _of_pool_thread(name: str, failures: list[Failure], still: str) -> Finding:
    """A pool waits for ever when one of its own threads has died of an exception."""
    said = [exceptions.short(failure.said) for failure in failures[:1]]
    is_rebuilt = name == "_handle_results" and any("__init__()" in line for line in said)
    died = f"the pool's thread that takes the results ({name}) died, so nobody takes them any more"
    if name != "_handle_results":
        died = f"a thread of the pool ({name}) died"
    fix = REBUILT if is_rebuilt else ("Mend what that exception says: the pool cannot go on after it.",)
    return finding("hang", "problem", still, died, *said, fix=fix)


def of_cycle(seen: Evidence, deaths: int) -> Finding:
    """Why workers die as soon as they start."""
    again = f"{count(deaths, 'worker')} in a row died as soon as they were started, and new ones were started for ever"
    errors = exceptions.of_workers(seen.said)
    symptom = symptoms.recognise(seen.said, seen.said)
    shown = (*exceptions.where(errors), again)
    if symptom is not None:
        return exceptions.of_symptom(seen, symptom, shown)
    if errors:
        return finding("own-exception", "problem", exceptions.short(errors[0].said), *shown)
    return finding("exit", "problem", again)


def _locked(locked: list[Waiting]) -> list[str]:
    process, words = locked[0].process, locked[0].wait.description
    more = f" (and {count(len(locked) - 1, 'other')} like it)" if len(locked) > 1 else ""
    lines = [f"pid {process.pid}, a worker, {words}{more}"]
    if (process.threads_of_parent or 0) > 1:
        lines.append(f"its parent, pid {process.parent}, ran {process.threads_of_parent} threads when it was forked")
    return lines


def _waits(hang: Hang) -> list[str]:
    lines = [f"pid {each.process.pid}, {each.process.role}, {each.wait.description}" for each in hang.waits]
    return [*lines[:SHOWN_WAITS], f"... and {len(lines) - SHOWN_WAITS} more"] if len(lines) > SHOWN_WAITS else lines


def _places(seen: Evidence) -> list[str]:
    """The user's lines at which the stopped processes were, each line once."""
    found: dict[str, str] = {}
    for stack in seen.stacks:
        for place in _own_frames(stack.failure)[-1:]:
            found.setdefault(str(place), f"pid {stack.process.pid} was at {place}")
    return list(found.values())


def _own_frames(failure: Failure) -> list[Frame]:
    """The user's lines in a stack; in a forked worker, those since the fork: the others are its parent's."""
    births = [place for place, frame in enumerate(failure.frames) if frame.function == "_bootstrap"]
    return [frame for frame in failure.frames[max(births, default=0) :] if frame.is_users]
