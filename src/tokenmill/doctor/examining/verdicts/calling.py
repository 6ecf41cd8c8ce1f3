"""Judges the calls of the function: the input it accepts, what it raised, and whether the process survived."""

from __future__ import annotations

import signal

import msgspec

from tokenmill import humanize
from tokenmill.doctor.causes import Check, Finding, finding
from tokenmill.doctor.examining.answers import Called, Ended, Loaded, Raised, Trying
from tokenmill.doctor.examining.case import Case, Verdict
from tokenmill.doctor.examining.forking import IDLE_SECONDS, INTERNAL_ERROR
from tokenmill.doctor.examining.verdicts.forks import hangs
from tokenmill.doctor.examining.verdicts.imports import script_line

FORMS = {"row": "rows, {{{column!r}: str}}", "batch": "batches, {{{column!r}: [str, ...]}}", "text": "strings"}
# Raised where the main part of the script, which does not run here, would have set a variable.
UNSET_ERRORS = {"NameError", "AttributeError", "UnboundLocalError"}
ALLOCATION_ERRORS = ("memory allocation of", "bad_alloc", "out of memory", "Cannot allocate memory")


def calling(case: Case, column: str) -> Verdict:
    """Judges which input the function accepts and whether it survives it."""
    deaths = [_death_finding(case, *death) for death in _deaths(case)]
    called = case.first_call
    if deaths:
        return Check("call", "problem", "the process dies"), deaths
    if called is None:
        return _no_answer(case)
    if called.form is not None:
        return Check("call", "ok", f"takes {FORMS[called.form].format(column=column)}"), []
    if called.unready is not None:
        return _initializer_failed(case, called, called.unready)
    return _call_failed(case, called, column)


def _no_answer(case: Case) -> Verdict:
    process, ended = case.spawned, case.ended("fork")
    if process is not None and process.end == "too late":
        return _timed_out(case, "half a minute", process.idle_seconds, process.stack)
    if ended is None or ended.outcome not in {"hung", "slow"}:
        return Check("call", "warning", "not tried"), []
    seconds = humanize.duration(ended.seconds)
    if hangs(case, ended):
        return Check("call", "warning", f"no answer in {seconds}: see fork"), []
    return _timed_out(case, seconds, ended.idle_seconds, ended.stack)


def _timed_out(case: Case, seconds: str, idle_seconds: float, stack: tuple[str, ...]) -> Verdict:
    """Judges a call that did not finish in time. A call that still computes is not suspicious."""
    check = Check("call", "warning", f"no answer in {seconds}")
    if idle_seconds < IDLE_SECONDS:
        return check, []
    evidence = f"it gave no answer in {seconds}; it is slow, or it hangs at {script_line(case, stack)}"
    fix = ("Look at what it waits for there. If it is only slow, all is well.",)
    hang = finding("hang", "warning", evidence, fix=fix)
    return check, [msgspec.structs.replace(hang, title="the function gave no answer")]


def ran_out_of_memory(case: Case) -> list[str]:
    """Returns evidence that a worker died for lack of memory."""
    evidence = []
    for status, occasion, _ in _deaths(case, with_memory=True):
        if status == -signal.SIGKILL:
            evidence.append(f"a worker was killed {occasion}, as the kernel does when memory runs out")
        elif _is_memory(case, status):
            evidence.append(f"a worker was aborted {occasion}: native code could not get memory")
    return evidence


def _deaths(case: Case, with_memory: bool = False) -> list[tuple[int, str, tuple[str, ...]]]:
    """Returns exit status, occasion and stack of each worker that died."""
    ended = [answer for answer in case.parent.all(Ended) if answer.outcome == "died"]
    deaths = [(answer.status, _occasion(case, answer.place == "odd texts"), answer.stack) for answer in ended]
    if case.spawned is not None and case.spawned.end == "died" and case.spawned.first(Loaded) is not None:
        odd = case.spawned.first(Trying) is not None
        deaths.append((case.spawned.status, _occasion(case, odd), case.spawned.stack))
    return [death for death in deaths if death[0] != INTERNAL_ERROR and with_memory == _is_memory(case, death[0])]


def _occasion(case: Case, odd: bool) -> str:
    trials = case.worker.all(Trying)
    return f"on the text {trials[-1].text!r}" if odd and trials else "on the sample"


def _is_memory(case: Case, status: int) -> bool:
    aborted = status == -signal.SIGABRT and any(message in case.worker.stderr for message in ALLOCATION_ERRORS)
    return status == -signal.SIGKILL or aborted


def _death_finding(case: Case, status: int, occasion: str, stack: tuple[str, ...]) -> Finding:
    where = [f"in Python it was at {frame}" for frame in stack[:1]]
    where += [f"called from {script_line(case, stack)}"] if case.target.path not in "".join(stack[:1]) and stack else []
    if status > 0:
        return finding("exit", "problem", f"the worker exits with code {status} {occasion}", *where)
    name = signal.Signals(-status).name
    return finding("native-crash", "problem", f"the worker dies of {name} {occasion}", *where)


def _initializer_failed(case: Case, called: Called, raised: Raised) -> Verdict:
    initializer = f"its initializer {case.script.initializer}"
    if called.hosts or raised.type in {*UNSET_ERRORS, "MemoryError"}:
        return Check("call", "warning", f"not tried: {initializer} needs what is not there yet ({raised.type})"), []
    evidence = f"{initializer} raises {raised.type}: {raised.message}"
    failure = finding("own-exception", "warning", evidence, case.target.line(raised.line))
    return Check("call", "warning", f"{initializer} raises {raised.type}"), [failure]


def _call_failed(case: Case, called: Called, column: str) -> Verdict:
    # The likeliest form of input comes first, but a KeyError is preferred: it names the missing column.
    number, raised = next(
        (pair for pair in enumerate(called.raised) if pair[1].type == "KeyError"), (0, called.raised[0])
    )
    if called.hosts or any(error.type == "MemoryError" for error in called.raised):
        return Check("call", "ok", f"raised {raised.type}: see below"), []
    if case.forks and (raised.type in UNSET_ERRORS or "NoneType" in raised.message):
        return Check("call", "warning", f"not tried: it needs what the main part sets ({raised.message})"), []
    if case.loaded.misnamed is not None:
        return _is_class(case, raised, case.loaded.misnamed.instead)
    form = FORMS[case.script.forms[number]].format(column=column)
    evidence = (f"called on made-up {form}: {raised.type}: {raised.message}", case.target.line(raised.line))
    failure = finding("own-exception", "warning", *evidence, fix=_column_fix(case, raised, column))
    return Check("call", "warning", f"raised {raised.type} on all that was tried"), [failure]


def _is_class(case: Case, raised: Raised, instead: str) -> Verdict:
    evidence = f"{case.target.function} is a class; called on a text it raises {raised.type}: {raised.message}"
    fix = ("Name an object of it that can be called, or a method of one:", f"    {case.target.file}:{instead}")
    return Check("call", "warning", "it is a class"), [finding("own-exception", "warning", evidence, fix=fix)]


def _column_fix(case: Case, raised: Raised, column: str) -> tuple[str, ...] | None:
    key = raised.message.strip("'\"")
    if raised.type != "KeyError" or key == column or not key.isidentifier() or len(key) < 2:
        return None
    return (
        f"If {key} is the column of the text, say so:",
        f"    tokenmill doctor {case.target.file}:{case.target.function} --column {key}",
    )
