"""Turns the evidence about a command into findings. The first death counts; later ones are consequences."""

from __future__ import annotations

import re
import signal

from tokenmill.doctor.causes import Finding, Level, finding, ordered
from tokenmill.doctor.watching import exceptions, hang_findings, symptoms, tracebacks
from tokenmill.doctor.watching.advice import memory_shortage
from tokenmill.doctor.watching.blame import SEVERE, root_cause
from tokenmill.doctor.watching.deaths import Death
from tokenmill.doctor.watching.evidence import Evidence
from tokenmill.doctor.watching.tracebacks import Failure
from tokenmill.humanize import count, duration

CANCEL_ALARM = ("Take the alarm back when the work is done (signal.alarm(0)), or give it a handler that raises.",)
UNOBSERVED = "a worker ended without an error code, or too soon to be seen"
NO_RECURSION = "Let the function stop calling itself. A low sys.setrecursionlimit makes it an exception, not a crash."
READER_GONE = re.compile(r"^Exception ignored [^\n]*stdout[^\n]*\n(?:Traceback[^\n]*\n)?BrokenPipeError", re.MULTILINE)


def diagnose(evidence: Evidence) -> list[Finding]:
    """Returns the findings, the first one to fix first."""
    cause, fingerprint = _main_finding(evidence), _fingerprint_finding(evidence)
    # An object that cannot be pickled cannot be hashed either: one finding is enough.
    if cause is not None and cause.cause.startswith("captured"):
        fingerprint = None
    return ordered([item for item in (cause, fingerprint) if item is not None])


def _main_finding(evidence: Evidence) -> Finding | None:
    if evidence.succeeded:
        severe = [death for death in evidence.deaths if death.killer in SEVERE]
        return _death_finding(evidence, severe[0], "warning") if severe else None
    if evidence.hang is not None:
        lost = root_cause([death for death in evidence.deaths if death.role == "worker"])
        lost_finding = None if lost is None else _death_finding(evidence, lost)
        return hang_findings.hang_finding(evidence, evidence.hang, lost_finding)
    if evidence.restart_deaths is not None:
        return hang_findings.restart_finding(evidence, evidence.restart_deaths)
    return None if evidence.was_interrupted or _is_end_of_pipe(evidence) else _failure_finding(evidence)


def _is_end_of_pipe(evidence: Evidence) -> bool:
    """Returns whether the command failed only because the reader of its stdout, such as `head`, ended."""
    if evidence.signal == signal.SIGPIPE or root_cause(evidence.deaths) is not None:
        return evidence.signal == signal.SIGPIPE
    chain = tracebacks.last_chain(evidence.stderr)
    if not chain:
        return READER_GONE.search(evidence.stderr) is not None
    is_in_pool = any(name in frame.file for frame in chain[-1].frames for name in ("multiprocess", "concurrent"))
    return chain[-1].kind == "BrokenPipeError" and not is_in_pool


def _failure_finding(evidence: Evidence) -> Finding:
    """Returns the finding for a command that failed: by a death, an exception or its own exit code."""
    death = root_cause(evidence.deaths)
    chain = tracebacks.last_chain(evidence.stderr)
    worker_lost = not chain or exceptions.reports_lost_worker(chain)
    if death is not None and (worker_lost or death.role == "command" or death.killer in SEVERE):
        return _death_finding(evidence, death)
    if worker_lost and (crashes := tracebacks.fatal_errors(evidence.stderr)):  # it died before it was observed
        return finding("native-crash", "problem", crashes[0].kind, *_crash_location(crashes[0]))
    if chain and worker_lost and not exceptions.worker_exceptions(evidence.stderr):
        return finding("exit", "problem", exceptions.shorten(chain[-1].summary), UNOBSERVED)
    if chain:
        return exceptions.chain_finding(evidence, chain)
    symptom = symptoms.recognize(evidence.stderr, evidence.stderr)
    return exceptions.symptom_finding(evidence, symptom, ()) if symptom is not None else _exit_finding(evidence)


def _death_finding(evidence: Evidence, death: Death, level: Level = "problem") -> Finding:
    roles = {"command": "the command itself", "worker": f"a worker of {death.parent}"}
    who = f"pid {death.pid}, {roles.get(death.role, death.name)}"
    if death.killer == "kernel":
        shortage = memory_shortage(death)
        killed = f"{who}, was killed by {death.why}"
        return finding("memory", level, killed, *shortage.evidence, fix=shortage.fix, title=shortage.title)
    if death.killer == "crash" or (death.killer == "unknown" and tracebacks.fatal_errors(evidence.stderr)):
        return _crash_finding(evidence, death, who, level)
    if death.killer == "itself":
        return _own_end_finding(evidence, death, who)
    excluded = ["it was not for lack of memory: the kernel's counters of that have not moved"]
    more = excluded if death.signal == "SIGKILL" else []
    return finding("killed", level, f"{who}, was ended by {death.why}", *more)


def _crash_finding(evidence: Evidence, death: Death, who: str, level: Level) -> Finding:
    symptom = symptoms.memory_symptom(evidence.stderr)
    if symptom is not None:
        return exceptions.symptom_finding(evidence, symptom, (f"{who}, then ended: {death.why}",))
    crashes = tracebacks.fatal_errors(evidence.stderr)
    recursion = next((frame for crash in crashes if (frame := crash.repeated) is not None), None)
    if recursion is not None:
        died = f"{who}, died of {death.why}: the stack had no room left"
        return finding("native-crash", level, died, fix=(NO_RECURSION,), title=f"endless recursion at {recursion}")
    stack = [line for crash in crashes[:1] for line in _crash_location(crash)]
    return finding("native-crash", level, f"{who}, died of {death.why}", *stack)


def _crash_location(crash: Failure) -> list[str]:
    if crash.location is None:
        return []
    innermost = [f"it was in {crash.frames[-1]}"]
    return innermost if crash.location == crash.frames[-1] else [*innermost, f"called from {crash.location}"]


def _own_end_finding(evidence: Evidence, death: Death, who: str) -> Finding:
    """Returns the finding for a process that ended itself.

    Exit code 1 means an exception that it printed; another code comes without a message.
    """
    errors = exceptions.worker_exceptions(evidence.stderr)
    if errors and death.exit_code == 1:
        return exceptions.chain_finding(evidence, errors[-1:])
    similar = [other for other in evidence.deaths if other.why == death.why and other.role == death.role]
    more = [f"{count(len(similar), death.role)} ended like this"] if len(similar) > 1 else []
    fix = CANCEL_ALARM if death.signal is not None else None
    return finding("exit", "problem", f"{who}, ended after {duration(death.seconds)}: {death.why}", *more, fix=fix)


def _exit_finding(evidence: Evidence) -> Finding:
    lines = [line.strip() for line in evidence.stderr.splitlines() if line.strip()]
    output = f"its last words: {exceptions.shorten(lines[-1])}" if lines else "it wrote nothing to stderr"
    how = f"exit code {evidence.exit_code}" if evidence.exit_code is not None else f"signal {evidence.signal}"
    fix = ("The command gives no reason that the doctor knows: begin with what it printed last.",)
    return finding("exit", "problem", f"the command ended with {how}", output, fix=fix)


def _fingerprint_finding(evidence: Evidence) -> Finding | None:
    lines = [line.strip() for line in evidence.stderr.splitlines() if symptoms.FINGERPRINT.search(line)]
    if not lines:
        return None
    return finding("unstable-fingerprint", "warning", exceptions.shorten(lines[-1].partition(". ")[0]))
