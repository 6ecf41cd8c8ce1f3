"""Everything that is known about a function when its examination is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from tokenmill.doctor.causes import Check, Finding
from tokenmill.doctor.examining.answers import Answer, Called, Ended, Loaded, MeasuredCall, Place
from tokenmill.doctor.examining.probing import End, ProbeProcess
from tokenmill.doctor.examining.script import Script
from tokenmill.doctor.examining.targets import Target

Verdict = tuple[Check, list[Finding]]
Kind = TypeVar("Kind", bound=Answer)


@dataclass(frozen=True, slots=True)
class Seen:
    """What one process answered, and how it ended."""

    answers: tuple[Answer, ...]
    end: End
    status: int
    idle_seconds: float
    stack: tuple[str, ...]
    stderr: str

    def all(self, kind: type[Kind]) -> list[Kind]:
        """Its answers of one kind."""
        return [answer for answer in self.answers if isinstance(answer, kind)]

    def first(self, kind: type[Kind]) -> Kind | None:
        """Its first answer of one kind."""
        return next(iter(self.all(kind)), None)


@dataclass(frozen=True, slots=True)
class Case:
    """A function under examination.

    `parent` is the process that loaded the script and forked; `spawned`, one that was started anew, where the script's
    workers are. `hashes` are the function's fingerprints in two processes, `differing` what makes them differ.
    """

    target: Target
    script: Script
    num_proc: int
    available_bytes: int
    loaded: Loaded
    parent: Seen
    spawned: Seen | None
    hash_again: Seen | None
    differing: tuple[str, ...]

    @property
    def forks(self) -> bool:
        """Whether its workers are forked."""
        return self.spawned is None

    @property
    def worker(self) -> Seen:
        """The process that tells how a worker fared."""
        return self.spawned or self.parent

    def called(self, place: Place) -> Called | None:
        """How a call went."""
        answers = [*self.parent.all(Called), *(self.spawned.all(Called) if self.spawned else [])]
        return next((answer for answer in answers if answer.place == place), None)

    @property
    def first_call(self) -> Called | None:
        """How the first call in a worker went."""
        return self.called("fork" if self.forks else "spawned")

    @property
    def measured(self) -> MeasuredCall | None:
        """What a worker took."""
        return self.worker.first(MeasuredCall)

    @property
    def parent_is_silent(self) -> bool:
        """Whether the function gave no answer where it was called without a fork."""
        return self.parent.end == "too late" and self.called("parent") is None

    def ended(self, place: Place) -> Ended | None:
        """How a forked child ended."""
        return next((answer for answer in self.parent.all(Ended) if answer.place == place), None)


def seen(probe: ProbeProcess) -> Seen:
    """What a process that has ended answered."""
    return Seen(
        answers=tuple(probe.answers()),
        end=probe.end or "done",
        status=probe.status,
        idle_seconds=probe.idle_seconds,
        stack=probe.stack,
        stderr=probe.stderr,
    )
