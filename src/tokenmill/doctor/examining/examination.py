"""Examines a function before a run: experiments in separate processes, and their interpretation.

This process neither loads the script nor unpickles anything. It starts the experiments and reads their answers.
"""

from __future__ import annotations

import msgspec

from tokenmill.doctor.causes import Check, Finding, ordered
from tokenmill.doctor.examining import memory, script, targets
from tokenmill.doctor.examining.case import Case, Verdict
from tokenmill.doctor.examining.experiments import Experiments
from tokenmill.doctor.examining.load_failures import LoadFailedError
from tokenmill.doctor.examining.probing import temporary_folder
from tokenmill.doctor.examining.verdicts.calling import calling
from tokenmill.doctor.examining.verdicts.counts import disks, processes
from tokenmill.doctor.examining.verdicts.fingerprint import fingerprint
from tokenmill.doctor.examining.verdicts.forks import forks
from tokenmill.doctor.examining.verdicts.imports import imports
from tokenmill.doctor.examining.verdicts.memory_fit import memory_fit
from tokenmill.doctor.examining.verdicts.sending import sending, task_size
from tokenmill.doctor.examining.verdicts.vocabulary import vocabulary
from tokenmill.humanize import Readable
from tokenmill.system import machine


class Examination(Readable, msgspec.Struct, frozen=True):
    """The checks and findings. `findings` starts with the one to fix first."""

    target: str
    num_proc: int
    start_method: str
    checks: list[Check]
    findings: list[Finding]


def examine(target: str, *, num_proc: int | None = None, column: str = "text") -> Examination:
    """Examines the function `script.py:function` as if it were to run in `num_proc` processes."""
    parsed = targets.parse(target)
    described = script.describe(parsed.tree, parsed.function)
    workers = num_proc or described.num_proc or machine.cores()
    with temporary_folder() as path:
        experiments = Experiments(parsed, described, workers, column, memory.available_bytes(), path)
        try:
            verdicts = judge(experiments.run(), column)
        except LoadFailedError as error:
            verdicts = [(Check("import", "problem", error.summary), [error.finding])]
    findings = ordered([item for _, items in verdicts for item in items])
    return Examination(target, workers, described.start_method, [check for check, _ in verdicts], findings)


def judge(case: Case, column: str) -> list[Verdict]:
    """Interprets the experiments."""
    return [
        imports(case),
        sending(case),
        task_size(case),
        calling(case, column),
        vocabulary(case),
        forks(case),
        memory_fit(case),
        processes(case),
        fingerprint(case),
        disks(case),
    ]
