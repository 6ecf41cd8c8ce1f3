"""From what was seen of a command to what is wrong with it: the first death counts, the others follow from it."""

from __future__ import annotations

import re
import signal

from tokenmill.doctor.causes import Finding, Level, finding, ordered
from tokenmill.doctor.watching import exceptions, hang_findings, symptoms, tracebacks
from tokenmill.doctor.watching.advice import memory
from tokenmill.doctor.watching.blame import GRAVE, first_cause
from tokenmill.doctor.watching.deaths import Death
from tokenmill.doctor.watching.evidence import Evidence
from tokenmill.doctor.watching.tracebacks import Failure
from tokenmill.humanize import count, duration

NO_ALARM = ("Take the alarm back when the work is done (signal.alarm(0)), or give it a handler that raises.",)
UNSEEN = "a worker ended without an error code, or too soon to be seen"
ENDLESS = ("Let the function stop calling itself. A low sys.setrecursionlimit makes it an exception, not a crash.",)
READER_GONE = re.compile(r"^Exception ignored [^\n]*stdout[^\n]*\n(?:Traceback[^\n]*\n)?BrokenPipeError", re.MULTILINE)


def diagnose(seen: Evidence) -> list[Finding]:
    """What is wrong, the first thing to mend first."""
    cause, fingerprint = _cause(seen), _fingerprint(seen)
    if cause is not None and cause.cause.startswith("captured"):  # what cannot be pickled cannot be hashed either
        fingerprint = None
    return ordered([found for found in (cause, fingerprint) if found is not None])


def _cause(seen: Evidence) -> Finding | None:
    if seen.ended_well:
        grave = [death for death in seen.deaths if death.killer in GRAVE]
        return _of_death(seen, grave[0], "warning") if grave else None
    if seen.hang is not None:
        lost = first_cause([death for death in seen.deaths if death.role == "worker"])
        return hang_findings.of_hang(seen, seen.hang, None if lost is None else _of_death(seen, lost))
    if seen.cycle is not None:
        return hang_findings.of_cycle(seen, seen.cycle)
    return None if seen.was_interrupted or _is_end_of_pipe(seen) else _of_failure(seen)


def _is_end_of_pipe(seen: Evidence) -> bool:
    """Whether the command only found that nobody reads its output any more: `| head` has seen enough."""
    if seen.number == signal.SIGPIPE or first_cause(seen.deaths) is not None:
        return seen.number == signal.SIGPIPE
    chain = tracebacks.last_chain(seen.said)
    if not chain:
        return READER_GONE.search(seen.said) is not None
    is_of_workers = any(word in frame.file for frame in chain[-1].frames for word in ("multiprocess", "concurrent"))
    return chain[-1].kind == "BrokenPipeError" and not is_of_workers


def _of_failure(seen: Evidence) -> Finding:
    """A command that ended with an error: by a death, by an exception, or by its own will."""
    death = first_cause(seen.deaths)
    chain = tracebacks.last_chain(seen.said)
    is_lost = not chain or exceptions.is_of_lost_worker(chain)
    if death is not None and (is_lost or death.role == "command" or death.killer in GRAVE):
        return _of_death(seen, death)
    if is_lost and (crashes := tracebacks.fatal_errors(seen.said)):  # it died before it could be seen
        return finding("native-crash", "problem", crashes[0].kind, *_places(crashes[0]))
    if chain and is_lost and not exceptions.of_workers(seen.said):
        return finding("exit", "problem", exceptions.short(chain[-1].said), UNSEEN)
    if chain:
        return exceptions.of_chain(seen, chain)
    symptom = symptoms.recognise(seen.said, seen.said)
    return exceptions.of_symptom(seen, symptom, ()) if symptom is not None else _of_exit(seen)


def _of_death(seen: Evidence, death: Death, level: Level = "problem") -> Finding:
    roles = {"command": "the command itself", "worker": f"a worker of {death.parent}"}
    who = f"pid {death.pid}, {roles.get(death.role, death.name)}"
    if death.killer == "kernel":
        lack = memory(death)
        killed = f"{who}, was killed by {death.why}"
        return finding("memory", level, killed, *lack.shown, fix=lack.fix, title=lack.title)
    if death.killer == "crash" or (death.killer == "unknown" and tracebacks.fatal_errors(seen.said)):
        return _of_crash(seen, death, who, level)
    if death.killer == "itself":
        return _of_own_end(seen, death, who)
    return finding("killed", level, f"{who}, was ended by {death.why}", *_not_memory(death))


def _not_memory(death: Death) -> list[str]:
    is_kill = death.signal == "SIGKILL"
    return ["it was not for lack of memory: the kernel's counters of that have not moved"] if is_kill else []


def _of_crash(seen: Evidence, death: Death, who: str, level: Level) -> Finding:
    symptom = symptoms.lack_of_memory(seen.said)
    if symptom is not None:
        return exceptions.of_symptom(seen, symptom, (f"{who}, then ended: {death.why}",))
    crashes = tracebacks.fatal_errors(seen.said)
    again = next((place for crash in crashes if (place := crash.repeated) is not None), None)
    if again is not None:
        died = f"{who}, died of {death.why}: the stack had no room left"
        return finding("native-crash", level, died, fix=ENDLESS, title=f"endless recursion at {again}")
    places = [place for failure in crashes[:1] for place in _places(failure)]
    return finding("native-crash", level, f"{who}, died of {death.why}", *places)


def _places(crash: Failure) -> list[str]:
    if crash.place is None:
        return []
    innermost = [f"it was in {crash.frames[-1]}"]
    return innermost if crash.place == crash.frames[-1] else [*innermost, f"called from {crash.place}"]


def _of_own_end(seen: Evidence, death: Death, who: str) -> Finding:
    """A process that ended by itself: of an exception that it printed, which makes exit code 1, or without a word."""
    errors = exceptions.of_workers(seen.said)
    if errors and death.exit_code == 1:
        return exceptions.of_chain(seen, errors[-1:])
    alike = [other for other in seen.deaths if other.why == death.why and other.role == death.role]
    more = [f"{count(len(alike), death.role)} ended like this"] if len(alike) > 1 else []
    fix = NO_ALARM if death.signal is not None else None
    return finding("exit", "problem", f"{who}, ended after {duration(death.seconds)}: {death.why}", *more, fix=fix)


def _of_exit(seen: Evidence) -> Finding:
    words = [line.strip() for line in seen.said.splitlines() if line.strip()]
    said = f"its last words: {exceptions.short(words[-1])}" if words else "it wrote nothing to stderr"
    how = f"exit code {seen.code}" if seen.code is not None else f"signal {seen.number}"
    fix = ("The command gives no reason that the doctor knows: begin with what it printed last.",)
    return finding("exit", "problem", f"the command ended with {how}", said, fix=fix)


def _fingerprint(seen: Evidence) -> Finding | None:
    lines = [line.strip() for line in seen.said.splitlines() if symptoms.FINGERPRINT.search(line)]
    if not lines:
        return None
    return finding("unstable-fingerprint", "warning", exceptions.short(lines[-1].partition(". ")[0]))
