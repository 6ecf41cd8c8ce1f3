"""Examines a function before a run: experiments in processes of their own, and what they mean.

The doctor's process loads nothing of the script and unpickles nothing: it starts the experiments and reads answers.
"""

from __future__ import annotations

import msgspec

from tokenmill.doctor.causes import Check, Finding, ordered
from tokenmill.doctor.examining import memory, script, targets
from tokenmill.doctor.examining.case import Case, Verdict
from tokenmill.doctor.examining.experiments import Experiments
from tokenmill.doctor.examining.load_failures import Stillborn
from tokenmill.doctor.examining.probing import folder
from tokenmill.doctor.examining.verdicts.calling import calling
from tokenmill.doctor.examining.verdicts.counts import disks, processes
from tokenmill.doctor.examining.verdicts.fingerprint import fingerprint
from tokenmill.doctor.examining.verdicts.forks import forks
from tokenmill.doctor.examining.verdicts.imports import imports
from tokenmill.doctor.examining.verdicts.room import room
from tokenmill.doctor.examining.verdicts.sending import sending, task_size
from tokenmill.doctor.examining.verdicts.vocabulary import vocabulary
from tokenmill.system import machine


class Examination(msgspec.Struct, frozen=True):
    """What was looked at and found; `findings` begin with the one to mend first."""

    target: str
    num_proc: int
    start_method: str
    checks: list[Check]
    findings: list[Finding]


def examine(target: str, *, num_proc: int | None = None, column: str = "text") -> Examination:
    """Examine the function that `script.py:function` names, as if it were to run in `num_proc` processes."""
    aim = targets.parse(target)
    text = script.describe(aim.tree, aim.function)
    number = num_proc or text.num_proc or machine.cores()
    with folder() as path:
        experiments = Experiments(aim, text, number, column, memory.available_bytes(), path)
        try:
            verdicts = judge(experiments.run(), column)
        except Stillborn as early:
            verdicts = [(Check("import", "problem", early.seen), [early.found])]
    findings = ordered([found for _, each in verdicts for found in each])
    return Examination(target, number, text.start_method, [check for check, _ in verdicts], findings)


def judge(case: Case, column: str) -> list[Verdict]:
    """What the experiments mean."""
    return [
        imports(case),
        sending(case),
        task_size(case),
        calling(case, column),
        vocabulary(case),
        forks(case),
        room(case),
        processes(case),
        fingerprint(case),
        disks(case),
    ]
