"""From an exception that was printed to what is wrong: a known cause by its words, or the function's own."""

from __future__ import annotations

from tokenmill.doctor.causes import Finding, finding
from tokenmill.doctor.watching import disks, symptoms, tracebacks
from tokenmill.doctor.watching.advice import is_crowded, room
from tokenmill.doctor.watching.evidence import Evidence
from tokenmill.doctor.watching.symptoms import Symptom
from tokenmill.doctor.watching.tracebacks import Failure

SHORT_CHARACTERS = 300


def of_chain(seen: Evidence, chain: list[Failure]) -> Finding:
    """What is wrong by an exception and those it came from."""
    said = "\n".join(failure.said for failure in chain)
    symptom = symptoms.recognise(said, "\n".join(failure.text for failure in chain))
    if symptom is not None:
        return of_symptom(seen, symptom, where(chain))
    return finding("own-exception", "problem", short(chain[-1].said), *where(chain))


def of_symptom(seen: Evidence, symptom: Symptom, shown: tuple[str, ...]) -> Finding:
    """What is wrong by known words, with what the limits say to it."""
    more, fix = room(symptom, seen.limits, seen.most)
    cause = symptom.cause
    if cause == "too-many-processes" and not is_crowded(seen.most):
        cause = "own-exception"
    if cause == "disk-full":
        more = disks.full()
    return finding(cause, "problem", *symptom.said, *shown, *more, fix=symptom.fix or fix)


def where(failures: list[Failure]) -> tuple[str, ...]:
    """The user's line at which the first of them began, with its code below it."""
    places = [failure.place for failure in failures if failure.place is not None]
    for place in [*(each for each in places if each.is_users), *places][:1]:
        return (f"at {place}", f"    {place.code}") if place.code else (f"at {place}",)
    return ()


def of_workers(said: str) -> list[Failure]:
    """The exceptions that are not just a parent's complaint that it has lost a worker."""
    return [failure for failure in tracebacks.exceptions(said) if not symptoms.LOST_WORKER.search(failure.said)]


def is_of_lost_worker(chain: list[Failure]) -> bool:
    """Whether it is just that complaint."""
    return any(symptoms.LOST_WORKER.search(failure.said) for failure in chain)


def short(text: str) -> str:
    """A text cut to what a table can hold."""
    return text if len(text) <= SHORT_CHARACTERS else f"{text[: SHORT_CHARACTERS - 3]}..."
