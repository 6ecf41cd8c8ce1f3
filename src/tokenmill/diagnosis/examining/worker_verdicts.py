"""Judges what a worker did: the input it accepts, whether it survived, the network, a hang and its memory.

Each function returns a row of the table and its findings.
"""

from __future__ import annotations

import signal
import socket
import urllib.parse

from tokenmill.diagnosis.causes import Check, Finding, Level, finding
from tokenmill.diagnosis.examining.answers import INTERNAL_ERROR, Called, Forked, Loaded, Measured, Raised, Trying
from tokenmill.diagnosis.examining.probing import ANSWER_SECONDS, IDLE_SECONDS
from tokenmill.diagnosis.examining.verdicts import Case, Verdict
from tokenmill.humanize import count, duration, size

FORMS = {"row": "rows, {{{column!r}: str}}", "batch": "batches, {{{column!r}: [str, ...]}}", "text": "strings"}
# Raised where the main part of the script, which does not run here, would have set a variable.
UNSET_ERRORS = {"NameError", "AttributeError", "UnboundLocalError"}
ALLOCATION_ERRORS = ("memory allocation of", "bad_alloc", "out of memory", "Cannot allocate memory")
REACH_SECONDS = 3.0
# More than this fraction of the free memory is a warning.
TIGHT_FRACTION = 0.9
# Text per worker: if less than this fills the memory, it is a problem.
SOON_BYTES = 1_000_000_000
# If it takes more than this, it is no finding.
LATE_BYTES = 20_000_000_000
SPAWN_FOR_DATASETS = (
    "Start the threads, or use the library that does, in the children only; or start the children anew:",
    '    multiprocess.set_start_method("spawn")  # the library that datasets uses, not multiprocessing',
)


def calling(case: Case) -> Verdict:
    """Judges which input the function accepts and whether the worker survives it."""
    called, worker = case.worker.first(Called), case.worker
    if worker.end == "died" and not _is_memory(case) and worker.status != INTERNAL_ERROR and worker.first(Loaded):
        return Check("call", "problem", "the process dies"), [_death_finding(case)]
    if called is None:
        return _no_answer(case)
    if called.form is not None:
        return Check("call", "ok", f"takes {FORMS[called.form].format(column=case.column)}"), []
    return _call_failed(case, called)


def _is_memory(case: Case) -> bool:
    """Returns whether a worker died for lack of memory."""
    worker = case.worker
    aborted = worker.status == -signal.SIGABRT and any(message in worker.stderr for message in ALLOCATION_ERRORS)
    return worker.end == "died" and (worker.status == -signal.SIGKILL or aborted)


def _occasion(case: Case) -> str:
    trials = case.worker.all(Trying)
    return f"on the text {trials[-1].text!r}" if trials else "on the sample"


def _death_finding(case: Case) -> Finding:
    status, stack, occasion = case.worker.status, case.worker.stack, _occasion(case)
    where = [f"in Python it was at {frame}" for frame in stack[:1]]
    where += [f"called from {case.target.line_in(stack)}" for frame in stack[:1] if case.target.path not in frame]
    if status > 0:
        return finding("exit", "problem", f"the worker exits with code {status} {occasion}", *where)
    return finding("native-crash", "problem", f"the worker dies of {signal.Signals(-status).name} {occasion}", *where)


def _no_answer(case: Case) -> Verdict:
    worker = case.worker
    if worker.end == "hung":
        hang = [_hang_finding(case)] if case.spawned else []
        return Check("call", "problem" if hang else "warning", f"no answer{': see fork' * (not hang)}"), hang
    if worker.end != "slow" or worker.first(Loaded) is None:
        return Check("call", "warning", "not tried" if worker.end == "done" else "no answer"), []
    seconds = duration(ANSWER_SECONDS)
    check = Check("call", "warning", f"no answer in {seconds}")
    if worker.idle_seconds < IDLE_SECONDS:  # a call that still computes is not suspicious
        return check, []
    where = case.target.line_in(worker.stack)
    evidence = f"it gave no answer in {seconds}; it is slow, or it hangs at {where}"
    fix = ("Look at what it waits for there. If it is only slow, all is well.",)
    return check, [finding("hang", "warning", evidence, fix=fix, title="the function gave no answer")]


def _call_failed(case: Case, called: Called) -> Verdict:
    # The likeliest form of input comes first, but a KeyError is preferred: it names the missing column.
    number, raised = next(
        (pair for pair in enumerate(called.raised) if pair[1].type == "KeyError"), (0, called.raised[0])
    )
    if called.hosts or any(error.type == "MemoryError" for error in called.raised):
        return Check("call", "ok", f"raised {raised.type}: see below"), []
    is_unset = raised.type in UNSET_ERRORS or "NoneType" in raised.message
    if is_unset and (case.spawned is None or called.stage):
        return Check("call", "warning", f"not tried: it needs what the main part sets ({raised.message})"), []
    form = FORMS[case.script.forms[number]].format(column=case.column)
    occasion = f"a worker that {called.stage} raises" if called.stage else f"called on made-up {form}:"
    evidence = (f"{occasion} {raised}", case.target.line(raised.line))
    column = (f"If {raised.message} is the column of the text, say so with --column.",)
    fix = column if raised.type == "KeyError" and raised.message != repr(case.column) else None
    failure = finding("own-exception", "warning", *evidence, fix=fix)
    return Check("call", "warning", f"raised {raised.type} on all that was tried"), [failure]


def network(case: Case) -> Verdict:
    """Judges whether a worker tried to use the network, and whether it worked without it."""
    called, loaded = case.worker.first(Called), case.spawned.first(Loaded) if case.spawned else None
    if loaded is not None and loaded.raised is not None and loaded.hosts:
        return _network_needed("when it imports the script", loaded.hosts, None, loaded.raised)
    if called is None:
        return Check("network", "ok", "not tried"), []
    if called.hosts and called.form is None:
        return _network_needed("when it is called", called.hosts, called.proxy, called.raised[-1])
    if called.hosts:
        return Check("network", "ok", f"asks {called.hosts[0]}, and goes on without an answer"), []
    return Check("network", "ok", "not needed by a worker"), []


def _network_needed(when: str, hosts: tuple[str, ...], proxy: str | None, raised: Raised) -> Verdict:
    """Judges a worker that downloads something: a problem if the host cannot be reached from here."""
    is_reached = _is_reachable(proxy or hosts[0])
    reach = "can be reached from here, but not from everywhere" if is_reached else "cannot be reached from here"
    level: Level = "warning" if is_reached else "problem"
    asked = f"it asks for {hosts[0]}, which {reach}"
    evidence = f"a worker without a network raises {raised.type} {when}: {raised.message}"
    offline = finding("vocabulary-offline", level, asked, evidence)
    return Check("network", level, f"a worker fetches from {hosts[0]}"), [offline]


def _is_reachable(address: str) -> bool:
    """Returns whether a host and port, or a proxy URL, accepts connections."""
    parts = urllib.parse.urlsplit(address if "://" in address else f"//{address}")
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 443), REACH_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def forks(case: Case) -> Verdict:
    """Judges whether the function hangs in a forked child."""
    forked = case.main.first(Forked)
    if forked is None:
        return Check("fork", "ok", f"not used: workers are started by {case.script.start_method}"), []
    threads = f"{count(forked.threads, 'thread')} at the fork"
    if case.main.end != "hung" or case.main.all(Trying):
        return Check("fork", "ok", threads + ", but no child hung" * (forked.threads > 1)), []
    return Check("fork", "problem", f"{threads}, and the child hangs"), [_hang_finding(case)]


def _hang_finding(case: Case) -> Finding:
    """Returns the finding for a worker that waits for a lock, perhaps one of its parent's threads."""
    stack, forked = case.worker.stack, case.main.first(Forked)
    evidence = [f"a worker does not come back from {case.target.line_in(stack)}"]
    evidence += [f"there it waits in {frame}" for frame in stack[:1] if case.target.path not in frame]
    if forked is None or forked.threads == 1:
        return finding("hang", "problem", *evidence, fix=("Look at what it waits for there.",))
    evidence.append(f"its parent had {forked.threads} threads at the fork")
    fix = SPAWN_FOR_DATASETS if "dill" in case.script.picklers else None
    return finding("threads-before-fork", "problem", *evidence, fix=fix)


def memory(case: Case) -> Verdict:
    """Judges whether the workers fit into memory."""
    measured = case.worker.first(Measured)
    failure = _memory_failure(case, measured)
    if failure is not None:
        return Check("memory", "problem", "not enough"), [failure]
    if measured is None:
        return Check("memory", "warning", "not measured"), []
    summary = (
        f"{size(measured.own_bytes)} a process x {case.num_proc} + {size(case.loaded.held_bytes)} in the parent; "
        f"{size(case.available_bytes)} are free{'; still growing' * (measured.growth_rate > 0)}"
    )
    found = _too_large(case, measured) or _growing(case, measured)
    return Check("memory", found.level if found else "ok", summary), [found] if found else []


def _memory_failure(case: Case, measured: Measured | None) -> Finding | None:
    """Returns a finding for a worker that outgrew its share, raised MemoryError or died like one."""
    free = size(case.available_bytes)
    if case.worker.end == "outgrew" and case.worker.first(Loaded) is not None:
        took = f"one worker took more than {size(case.available_bytes // case.num_proc)} while it was called on made-up"
        evidence = (f"{took} text, and was stopped", f"that is what {free} leave to each of {case.num_proc}")
        fix = "Let the function keep less: bound its caches, read large files piece by piece. Or use fewer processes."
        return finding("memory", "problem", *evidence, fix=(fix,))
    raised: list[Raised | None] = [error for called in case.worker.all(Called) for error in called.raised]
    raised += [measured.raised] if measured is not None else []
    lines = [error.line for error in raised if error is not None and error.type == "MemoryError"]
    failures = [f"MemoryError in {case.target.line(line)}" for line in lines[:1]]
    if _is_memory(case):
        how = "killed" if case.worker.status == -signal.SIGKILL else "aborted"
        failures.append(f"a worker was {how} {_occasion(case)}, as it happens when memory runs out")
    if not failures:
        return None
    limit = case.loaded.address_space
    if limit is None:
        return finding("memory", "problem", *failures, f"{free} are free")
    ulimit = f"the limit of address space (ulimit -v) is {size(limit)} a process"
    fix = "Raise the limit (ulimit -v, RLIMIT_AS), or let the function keep less."
    return finding("memory", "problem", *failures, ulimit, fix=(fix,))


def _too_large(case: Case, measured: Measured) -> Finding | None:
    need, available = case.loaded.held_bytes + case.num_proc * measured.own_bytes, case.available_bytes
    if need <= TIGHT_FRACTION * available:
        return None
    fit = int((TIGHT_FRACTION * available - case.loaded.held_bytes) / max(1, measured.own_bytes))
    taken = f"one worker takes {size(measured.own_bytes)} on a sample; {case.num_proc} need {size(need)}"
    fix = f"Use {fit} processes." if fit > 1 else "Use one process, on a machine with more memory."
    level: Level = "problem" if need > available else "warning"
    return finding("memory", level, taken, f"{size(available)} are free", fix=(fix,))


def _growing(case: Case, measured: Measured) -> Finding | None:
    """Returns a finding for a cache that still grows at the end of the sample: when it fills the memory."""
    left = max(0, case.available_bytes // case.num_proc - measured.own_bytes)
    if measured.growth_rate * LATE_BYTES <= left:
        return None
    text = measured.text_bytes + left / measured.growth_rate
    half, free = measured.text_bytes / 2, size(case.available_bytes)
    grown = size(measured.growth_rate * half)
    evidence = (
        f"one worker grew by {grown} over the last {size(half)} of the sample's text, and did not stop",
        f"if it goes on like this, {case.num_proc} of them fill {free} after {size(text)} of text each",
    )
    fix = ("Bound what the function keeps: functools.lru_cache(maxsize=100_000), or empty it now and then.",)
    return finding("memory", "problem" if text < SOON_BYTES else "warning", *evidence, fix=fix)
