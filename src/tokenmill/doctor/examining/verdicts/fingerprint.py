"""Judges whether datasets recognizes the function in its cache."""

from __future__ import annotations

from tokenmill.doctor.causes import Check, finding
from tokenmill.doctor.examining.answers import Hashed, Pickled
from tokenmill.doctor.examining.case import Case, Verdict


def fingerprint(case: Case) -> Verdict:
    """Judges whether the function has the same fingerprint in every process."""
    hashed = case.parent.all(Hashed)
    first = next((answer for answer in hashed if not answer.after_call), None)
    if first is None:
        return Check("fingerprint", "ok", "not looked at: datasets is not used"), []
    if first.digest is None:
        return _same_obstacle(case) or _unhashable(first)
    second = case.hash_again.first(Hashed) if case.hash_again is not None else None
    if second is not None and second.digest != first.digest:
        return _differs(case)
    after = next((answer for answer in hashed if answer.after_call), None)
    changes = after is not None and after.digest != first.digest
    return Check("fingerprint", "ok", "the same in two processes" + "; another after a call" * changes), []


def _same_obstacle(case: Case) -> Verdict | None:
    """Returns a check without a finding if the function cannot be sent: the same object prevents both."""
    sent = next((answer for answer in case.parent.all(Pickled) if answer.pickler == "dill"), None)
    if sent is None or sent.raised is None:
        return None
    return Check("fingerprint", "ok", "none, as long as it cannot be sent"), []


def _unhashable(hashed: Hashed) -> Verdict:
    obstacle, raised = hashed.obstacle, hashed.raised
    evidence = [f"{obstacle.path} is a {obstacle.type}"] if obstacle is not None else []
    evidence += [f"datasets cannot hash it: {raised.type}: {raised.message}"] if raised is not None else []
    result = finding("unstable-fingerprint", "warning", *evidence, "so each run gets a random fingerprint")
    summary = f"none: {obstacle.path} cannot be hashed" if obstacle is not None else "none"
    return Check("fingerprint", "warning", summary), [result]


def _differs(case: Case) -> Verdict:
    parts = [f"{path} is not the same in each process" for path in case.differing[:3]]
    evidence = parts or [f"two processes gave {case.target.function} two fingerprints"]
    return Check("fingerprint", "warning", "another one in each process"), [
        finding("unstable-fingerprint", "warning", *evidence)
    ]
