"""Which of several deaths is the cause, and which only follow from it."""

from __future__ import annotations

from tokenmill.doctor.watching.deaths import Death

GRAVE = ("kernel", "crash")
"""Ends that nobody plans for, whatever the parent then says."""

UNASKED, ASKED = (*GRAVE, "limit"), "parent"

TOGETHER_SECONDS = 1.0
"""A parent's pipes close a little before it is seen to end, so its workers may seem to have ended first."""


def first_cause(deaths: list[Death]) -> Death | None:
    """The death that the others follow from: the gravest, and of these the first; the command's own comes last."""
    causes = [death for death in deaths if _is_cause(death, deaths)]
    return min(causes, key=_order, default=None)


def _order(death: Death) -> tuple[int, bool, int]:
    """Of those that the kernel killed for lack of memory, the largest comes first, also if it is the command."""
    if death.killer == "kernel":
        return 0, False, -(death.peak_bytes or 0)
    return _rank(death), death.role == "command", 0


def _rank(death: Death) -> int:
    """No process can keep the kernel from killing it; a request is what a parent sends after another died."""
    if death.killer in UNASKED:
        return 0
    return 2 if death.killer == ASKED else 1


def _is_cause(death: Death, deaths: list[Death]) -> bool:
    if death.role == "command":
        return death.signal is not None
    return not _is_asked_for(death, deaths) and not _follows_parent(death, deaths)


def _is_asked_for(death: Death, deaths: list[Death]) -> bool:
    """Whether it was ended on purpose: a parent that ends its workers ends all of them."""
    if death.killer != ASKED:
        return False
    siblings = [other for other in deaths if other.parent == death.parent and other.killer == ASKED]
    return death.role != "worker" or len(siblings) > 1 or death.workers < 2


def _follows_parent(death: Death, deaths: list[Death]) -> bool:
    """Whether a worker gave up, with an exception, because its parent had been killed."""
    parents = [other for other in deaths if other.pid == death.parent and other.signal is not None]
    is_after = any(parent.after_seconds < death.after_seconds + TOGETHER_SECONDS for parent in parents)
    return death.exit_code == 1 and is_after
