"""How calls of the function went: the input it takes, what it raised, and whether the process survived."""

from __future__ import annotations

import signal

import msgspec

from tokenmill import humanize
from tokenmill.doctor.causes import Check, Finding, finding
from tokenmill.doctor.examining.answers import Called, Ended, Loaded, Raised, Trying
from tokenmill.doctor.examining.case import Case, Verdict
from tokenmill.doctor.examining.forking import IDLE_SECONDS
from tokenmill.doctor.examining.verdicts.forks import hangs
from tokenmill.doctor.examining.verdicts.imports import script_line

FORMS = {"row": "rows, {{{column!r}: str}}", "batch": "batches, {{{column!r}: [str, ...]}}", "text": "strings"}
NOT_READY = {"NameError", "AttributeError", "UnboundLocalError"}
"""What is raised where the script's main part would have set something that was not set here."""

OWN_FAILURE = 70
NO_MEMORY = ("memory allocation of", "bad_alloc", "out of memory", "Cannot allocate memory")


def calling(case: Case, column: str) -> Verdict:
    """Which input the function takes, and whether it survives it."""
    deaths = [_death(case, *found) for found in _deaths(case)]
    called = case.first_call
    if deaths:
        return Check("call", "problem", "the process dies"), deaths
    if called is None:
        return _no_answer(case)
    if called.form is not None:
        return Check("call", "ok", f"takes {FORMS[called.form].format(column=column)}"), []
    if called.unready is not None:
        return _unready(case, called, called.unready)
    return _refused(case, called, column)


def _no_answer(case: Case) -> Verdict:
    process, ended = case.spawned, case.ended("fork")
    if process is not None and process.end == "too late":
        return _silent(case, "half a minute", process.idle_seconds, process.stack)
    if ended is None or ended.outcome not in {"hung", "slow"}:
        return Check("call", "warning", "not tried"), []
    seconds = humanize.duration(ended.seconds)
    if hangs(case, ended):
        return Check("call", "warning", f"no answer in {seconds}: see fork"), []
    return _silent(case, seconds, ended.idle_seconds, ended.stack)


def _silent(case: Case, seconds: str, idle_seconds: float, stack: tuple[str, ...]) -> Verdict:
    """A call that was not done in time. While it computes, nothing speaks against it."""
    check = Check("call", "warning", f"no answer in {seconds}")
    if idle_seconds < IDLE_SECONDS:
        return check, []
    told = f"it gave no answer in {seconds}; it is slow, or it hangs at {script_line(case, stack)}"
    found = finding("hang", "warning", told, fix=("Look at what it waits for there. If it is only slow, all is well.",))
    return check, [msgspec.structs.replace(found, title="the function gave no answer")]


def ran_out_of_memory(case: Case) -> list[str]:
    """Signs that a worker ended for want of memory."""
    signs = []
    for status, place, _ in _deaths(case, with_memory=True):
        if status == -signal.SIGKILL:
            signs.append(f"a worker was killed {place}, as the kernel does when memory runs out")
        elif _is_memory(case, status):
            signs.append(f"a worker was aborted {place}: native code could not get memory")
    return signs


def _deaths(case: Case, with_memory: bool = False) -> list[tuple[int, str, tuple[str, ...]]]:
    """Exit status, occasion and stack of each worker that died."""
    ended = [answer for answer in case.parent.all(Ended) if answer.outcome == "died"]
    found = [(answer.status, _occasion(case, answer.place == "odd texts"), answer.stack) for answer in ended]
    if case.spawned is not None and case.spawned.end == "died" and case.spawned.first(Loaded) is not None:
        odd = case.spawned.first(Trying) is not None
        found.append((case.spawned.status, _occasion(case, odd), case.spawned.stack))
    return [death for death in found if death[0] != OWN_FAILURE and with_memory == _is_memory(case, death[0])]


def _occasion(case: Case, odd: bool) -> str:
    tried = case.worker.all(Trying)
    return f"on the text {tried[-1].text!r}" if odd and tried else "on the sample"


def _is_memory(case: Case, status: int) -> bool:
    aborted = status == -signal.SIGABRT and any(sign in case.worker.stderr for sign in NO_MEMORY)
    return status == -signal.SIGKILL or aborted


def _death(case: Case, status: int, occasion: str, stack: tuple[str, ...]) -> Finding:
    at = [f"in Python it was at {place}" for place in stack[:1]]
    at += [f"called from {script_line(case, stack)}"] if case.target.path not in "".join(stack[:1]) and stack else []
    if status > 0:
        return finding("exit", "problem", f"the worker exits with code {status} {occasion}", *at)
    name = signal.Signals(-status).name
    return finding("native-crash", "problem", f"the worker dies of {name} {occasion}", *at)


def _unready(case: Case, called: Called, raised: Raised) -> Verdict:
    what = f"its initializer {case.script.initializer}"
    if called.hosts or raised.type in {*NOT_READY, "MemoryError"}:
        return Check("call", "warning", f"not tried: {what} needs what is not there yet ({raised.type})"), []
    found = finding(
        "own-exception", "warning", f"{what} raises {raised.type}: {raised.message}", case.target.line(raised.line)
    )
    return Check("call", "warning", f"{what} raises {raised.type}"), [found]


def _refused(case: Case, called: Called, column: str) -> Verdict:
    number, raised = _most_telling(called.raised)
    if called.hosts or any(each.type == "MemoryError" for each in called.raised):
        return Check("call", "ok", f"raised {raised.type}: see below"), []
    if case.forks and (raised.type in NOT_READY or "NoneType" in raised.message):
        return Check("call", "warning", f"not tried: it needs what the main part sets ({raised.message})"), []
    if case.loaded.misnamed is not None:
        return _is_class(case, raised, case.loaded.misnamed.instead)
    form = FORMS[case.script.forms[number]].format(column=column)
    evidence = (f"called on made-up {form}: {raised.type}: {raised.message}", case.target.line(raised.line))
    found = finding("own-exception", "warning", *evidence, fix=_hint(case, raised, column))
    return Check("call", "warning", f"raised {raised.type} on all that was tried"), [found]


def _is_class(case: Case, raised: Raised, instead: str) -> Verdict:
    told = f"{case.target.function} is a class; called on a text it raises {raised.type}: {raised.message}"
    fix = ("Name an object of it that can be called, or a method of one:", f"    {case.target.file}:{instead}")
    return Check("call", "warning", "it is a class"), [finding("own-exception", "warning", told, fix=fix)]


def _most_telling(raised: tuple[Raised, ...]) -> tuple[int, Raised]:
    """What was raised on the likeliest form of input; but a missing key says more than a wrong type."""
    return next((pair for pair in enumerate(raised) if pair[1].type == "KeyError"), (0, raised[0]))


def _hint(case: Case, raised: Raised, column: str) -> tuple[str, ...] | None:
    key = raised.message.strip("'\"")
    if raised.type != "KeyError" or key == column or not key.isidentifier() or len(key) < 2:
        return None
    return (
        f"If {key} is the column of the text, say so:",
        f"    tokenmill doctor {case.target.file}:{case.target.function} --column {key}",
    )
