"""Decides which of several deaths is the root cause and which are consequences."""

from __future__ import annotations

from tokenmill.doctor.watching.deaths import Death

# Killers that are never intended, whatever the parent reports afterwards.
SEVERE = ("kernel", "crash")
UNINTENDED = (*SEVERE, "limit")
INTENDED = "parent"
# The pipes of a parent close before its end is observed, so its workers may seem to have ended first.
TOLERANCE_SECONDS = 1.0


def root_cause(deaths: list[Death]) -> Death | None:
    """Returns the root cause: the most severe death, and of these the first. The command's own death comes last."""
    causes = [death for death in deaths if _is_cause(death, deaths)]
    return min(causes, key=_order, default=None)


def _order(death: Death) -> tuple[int, bool, int]:
    """Sort key. Of processes that the kernel killed for lack of memory, the largest comes first, even the command."""
    if death.killer == "kernel":
        return 0, False, -(death.peak_bytes or 0)
    return _rank(death), death.role == "command", 0


def _rank(death: Death) -> int:
    """Ranks a death: a kill that no process can prevent first, a signal that parents send after another death last."""
    if death.killer in UNINTENDED:
        return 0
    return 2 if death.killer == INTENDED else 1


def _is_cause(death: Death, deaths: list[Death]) -> bool:
    if death.role == "command":
        return death.signal is not None
    return not _is_intended(death, deaths) and not _follows_parent(death, deaths)


def _is_intended(death: Death, deaths: list[Death]) -> bool:
    """Returns whether a parent ended it on purpose: a parent that ends its workers ends all of them."""
    if death.killer != INTENDED:
        return False
    siblings = [other for other in deaths if other.parent == death.parent and other.killer == INTENDED]
    return death.role != "worker" or len(siblings) > 1 or death.workers < 2


def _follows_parent(death: Death, deaths: list[Death]) -> bool:
    """Returns whether a worker raised an exception because its parent had been killed."""
    parents = [other for other in deaths if other.pid == death.parent and other.signal is not None]
    is_after = any(parent.after_seconds < death.after_seconds + TOLERANCE_SECONDS for parent in parents)
    return death.exit_code == 1 and is_after
