"""Judges whether a forked child hangs because of its parent's threads."""

from __future__ import annotations

from tokenmill import humanize
from tokenmill.doctor.causes import Check, Finding, finding
from tokenmill.doctor.examining.answers import Called, Ended
from tokenmill.doctor.examining.case import Case, Verdict
from tokenmill.doctor.examining.verdicts.imports import script_line

QUICK_SECONDS = 2.0


def forks(case: Case) -> Verdict:
    """Judges whether the function hangs in a forked child."""
    if case.ended("fork") is None:
        return Check("fork", "ok", f"not used: workers are started by {case.script.start_method}"), []
    hung = next((answer for answer in case.parent.all(Ended) if hangs(case, answer)), None)
    threads = humanize.count(case.loaded.threads, "thread")
    if hung is None:
        summary = f"{threads} at the fork" if case.loaded.threads == 1 else f"{threads} at the fork, but no child hung"
        return Check("fork", "ok", summary), []
    if hung.place == "odd texts":
        return Check("fork", "ok", f"{threads} at the fork; very slow on odd texts"), []
    if hung.place == "fork after call" and case.script.called_at is None:
        return Check("fork", "ok", f"{threads} at the fork (a child would hang if the parent called it first)"), []
    hang = _hang_finding(case, hung)
    summary = f"{humanize.count(hung.threads, 'thread')} at the fork, and the child hangs"
    return Check("fork", hang.level, summary), [hang]


def hangs(case: Case, ended: Ended) -> bool:
    """Returns whether a child hung because of the fork. A call that is slow in the parent too does not count."""
    if ended.outcome == "hung":
        return not case.parent_timed_out
    called = case.called("parent")
    answered = ended.place == "fork" and case.called("fork") is not None
    is_quick = called is not None and called.form is not None and called.seconds < QUICK_SECONDS
    return ended.outcome == "slow" and is_quick and not answered


def _hang_finding(case: Case, hung: Ended) -> Finding:
    called = case.called("parent")
    evidence = [f"a forked child does not come back from {script_line(case, hung.stack)}"]
    evidence += [f"there it waits in {frame}" for frame in hung.stack[:1] if case.target.path not in frame]
    if hung.threads == 1 and (called is None or called.form is None):
        return finding("hang", "problem", *evidence, fix=("Look at what it waits for there.",))
    evidence.append(f"its parent had {humanize.count(hung.threads, 'thread')} at the fork")
    if hung.place == "fork after call":
        evidence.append(f"the parent had called the function before, as in {case.target.line(case.script.called_at)}")
    elif isinstance(called, Called) and called.form is not None:
        evidence.append("in the parent itself the same call comes back")
    return finding("threads-before-fork", "problem", *evidence, fix=_fix(case))


def _fix(case: Case) -> tuple[str, ...] | None:
    if "dill" not in case.script.picklers:
        return None
    return (
        "Start the threads, or use the library that does, in the children only; or start the children anew:",
        '    multiprocess.set_start_method("spawn")  # the library that datasets uses, not multiprocessing',
    )
