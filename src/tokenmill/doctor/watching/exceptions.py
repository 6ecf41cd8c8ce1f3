"""Turns a printed exception into a finding: a known cause by its message, else the function's own exception."""

from __future__ import annotations

from tokenmill.doctor.causes import Finding, finding
from tokenmill.doctor.watching import disks, symptoms, tracebacks
from tokenmill.doctor.watching.advice import is_crowded, limit_advice
from tokenmill.doctor.watching.evidence import Evidence
from tokenmill.doctor.watching.symptoms import Symptom
from tokenmill.doctor.watching.tracebacks import Failure

SHORT_CHARACTERS = 300


def chain_finding(evidence: Evidence, chain: list[Failure]) -> Finding:
    """Returns the finding for a chain of exceptions."""
    message = "\n".join(failure.summary for failure in chain)
    symptom = symptoms.recognize(message, "\n".join(failure.text for failure in chain))
    if symptom is not None:
        return symptom_finding(evidence, symptom, describe_location(chain))
    return finding("own-exception", "problem", shorten(chain[-1].summary), *describe_location(chain))


def symptom_finding(evidence: Evidence, symptom: Symptom, extra: tuple[str, ...]) -> Finding:
    """Returns the finding for a symptom, with what the limits add to it."""
    more, fix = limit_advice(symptom, evidence.limits, evidence.max_processes)
    cause = symptom.cause
    if cause == "too-many-processes" and not is_crowded(evidence.max_processes):
        cause = "own-exception"
    if cause == "disk-full":
        more = disks.full()
    return finding(cause, "problem", *symptom.evidence, *extra, *more, fix=symptom.fix or fix)


def describe_location(failures: list[Failure]) -> tuple[str, ...]:
    """Describes the first failure's line in the user's code, with its source below it."""
    frames = [failure.location for failure in failures if failure.location is not None]
    for frame in [*(frame for frame in frames if frame.is_users), *frames][:1]:
        return (f"at {frame}", f"    {frame.code}") if frame.code else (f"at {frame}",)
    return ()


def worker_exceptions(stderr: str) -> list[Failure]:
    """Returns the exceptions, without those of a parent that reports a lost worker."""
    return [failure for failure in tracebacks.exceptions(stderr) if not symptoms.LOST_WORKER.search(failure.summary)]


def reports_lost_worker(chain: list[Failure]) -> bool:
    """Returns whether an exception of the chain reports a lost worker."""
    return any(symptoms.LOST_WORKER.search(failure.summary) for failure in chain)


def shorten(text: str) -> str:
    """Shortens a text for a table."""
    return text if len(text) <= SHORT_CHARACTERS else f"{text[: SHORT_CHARACTERS - 3]}..."
