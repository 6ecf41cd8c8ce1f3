"""Everything known about a function when its examination is judged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from tokenmill.doctor.causes import Check, Finding
from tokenmill.doctor.examining.answers import Answer, Called, Ended, Loaded, MeasuredCall, Trial
from tokenmill.doctor.examining.probing import ProbeEnd, ProbeProcess
from tokenmill.doctor.examining.script import Script
from tokenmill.doctor.examining.targets import Target

Verdict = tuple[Check, list[Finding]]
AnswerT = TypeVar("AnswerT", bound=Answer)


@dataclass(frozen=True, slots=True)
class ProbeReport:
    """The answers of one probe process, and how it ended."""

    answers: tuple[Answer, ...]
    end: ProbeEnd
    status: int
    idle_seconds: float
    stack: tuple[str, ...]
    stderr: str

    def all(self, kind: type[AnswerT]) -> list[AnswerT]:
        """Returns its answers of one kind."""
        return [answer for answer in self.answers if isinstance(answer, kind)]

    def first(self, kind: type[AnswerT]) -> AnswerT | None:
        """Returns its first answer of one kind, or None."""
        return next(iter(self.all(kind)), None)


@dataclass(frozen=True, slots=True)
class Case:
    """A function under examination.

    Attributes:
        parent: The process that loaded the script and forked.
        spawned: A newly started process, None if the script's workers are forked.
        hash_again: A second process that computed the fingerprint, None if datasets is not used.
        differing: The paths of the objects whose fingerprints differ between two processes.
    """

    target: Target
    script: Script
    num_proc: int
    available_bytes: int
    loaded: Loaded
    parent: ProbeReport
    spawned: ProbeReport | None
    hash_again: ProbeReport | None
    differing: tuple[str, ...]

    @property
    def forks(self) -> bool:
        """Whether its workers are forked."""
        return self.spawned is None

    @property
    def worker(self) -> ProbeReport:
        """The process whose answers describe a worker."""
        return self.spawned or self.parent

    def called(self, trial: Trial) -> Called | None:
        """Returns the call in one trial, or None."""
        answers = [*self.parent.all(Called), *(self.spawned.all(Called) if self.spawned else [])]
        return next((answer for answer in answers if answer.place == trial), None)

    @property
    def first_call(self) -> Called | None:
        """The first call in a worker."""
        return self.called("fork" if self.forks else "spawned")

    @property
    def measured(self) -> MeasuredCall | None:
        """The memory measurement of a worker."""
        return self.worker.first(MeasuredCall)

    @property
    def parent_timed_out(self) -> bool:
        """Whether the function also gave no answer when it was called without a fork."""
        return self.parent.end == "too late" and self.called("parent") is None

    def ended(self, trial: Trial) -> Ended | None:
        """Returns how the forked child of one trial ended, or None."""
        return next((answer for answer in self.parent.all(Ended) if answer.place == trial), None)


def report_of(probe: ProbeProcess) -> ProbeReport:
    """Collects the answers of a process that has ended."""
    return ProbeReport(
        answers=tuple(probe.answers()),
        end=probe.end or "done",
        status=probe.status,
        idle_seconds=probe.idle_seconds,
        stack=probe.stack,
        stderr=probe.stderr,
    )
