"""Judges whether the function can be sent to its workers, and how much is sent with it."""

from __future__ import annotations

from tokenmill import humanize
from tokenmill.doctor.causes import Check, Finding, Level, finding
from tokenmill.doctor.examining.answers import Pickled, Unpickled
from tokenmill.doctor.examining.case import Case, Verdict
from tokenmill.doctor.examining.verdicts.fixes import obstacle_fix

CAUSE_OF_KIND = {
    "native": "captured-native-object",
    "resource": "captured-resource",
    "nameless": "nameless-function",
}
LIBRARIES = {
    "pickle": "pickle (multiprocessing, concurrent.futures)",
    "dill": "dill (datasets)",
    "cloudpickle": "cloudpickle (Ray, Spark, joblib)",
}
# A pool sends the function with every task; datasets.map sends it once to each process, so its limit is higher.
HEAVY_BYTES = {"pickle": 1_000_000, "cloudpickle": 1_000_000, "dill": 10_000_000}
TOO_HEAVY_BYTES = {"pickle": 50_000_000, "cloudpickle": 50_000_000, "dill": 500_000_000}


def sending(case: Case) -> Verdict:
    """Judges whether each relevant library can pickle the function."""
    answers = case.parent.all(Pickled)
    by_path: dict[str, Finding] = {}
    for answer in answers:
        if answer.raised is not None and (level := _level(case, answer, answers)) != "ok":
            path = answer.obstacle.path if answer.obstacle else ""
            if path not in by_path or by_path[path].level == "warning":
                by_path[path] = _finding(answer, level)
    findings = [*by_path.values(), *_arrival(case)]
    summary = "; ".join(_summary(case, answer) for answer in answers) or "no library to try"
    return Check("sending", worst(findings), summary), findings


def task_size(case: Case) -> Verdict:
    """Judges the size of the pickled function."""
    sizes = [answer for answer in case.parent.all(Pickled) if answer.size_bytes is not None]
    used = [answer for answer in sizes if not case.script.picklers or answer.pickler in case.script.picklers]
    if not used:
        return Check("task size", "ok", "unknown, for it cannot be sent"), []
    heaviest = max(used, key=lambda answer: answer.size_bytes or 0)
    size = heaviest.size_bytes or 0
    observed = f"{humanize.size(size)} with each task ({heaviest.pickler})"
    if size <= HEAVY_BYTES[heaviest.pickler]:
        return Check("task size", "ok", observed), []
    level: Level = "problem" if size > TOO_HEAVY_BYTES[heaviest.pickler] else "warning"
    part = heaviest.largest
    inside = [f"{humanize.size(part.size_bytes)} of it are {part.path} ({part.type})"] if part else []
    heavy = finding("heavy-task", level, f"{case.target.function} is {humanize.size(size)} when pickled", *inside)
    return Check("task size", level, observed), [heavy]


def worst(findings: list[Finding]) -> Level:
    """Returns the worst level of some findings."""
    levels = {item.level for item in findings}
    return "problem" if "problem" in levels else "warning" if "warning" in levels else "ok"


def _summary(case: Case, answer: Pickled) -> str:
    if answer.size_bytes is not None:
        return f"{answer.pickler} {humanize.size(answer.size_bytes)}"
    unused = case.script.picklers and answer.pickler not in case.script.picklers
    return f"{answer.pickler} cannot{' (not used here)' if unused else ''}"


def _level(case: Case, answer: Pickled, answers: list[Pickled]) -> Level:
    """Rates a failed pickler. Only those that the script uses count. In doubt, it is a warning if another one works."""
    used = case.script.picklers
    if used and answer.pickler not in used:
        return "ok"
    unclear = (answer.pickler == "pickle" and used != ("pickle",)) or (answer.pickler == "cloudpickle" and not used)
    return "warning" if unclear and any(other.size_bytes is not None for other in answers) else "problem"


def _finding(answer: Pickled, level: Level) -> Finding:
    obstacle, raised = answer.obstacle, answer.raised
    message = f"{LIBRARIES[answer.pickler]}: {raised.type}: {raised.message}" if raised else ""
    if obstacle is None:
        return finding("captured-resource", level, message)
    where = f"{obstacle.path} is a {obstacle.type}"
    name = [f"in the script's own words: {obstacle.spoken}"] if obstacle.spoken != obstacle.path else []
    return finding(CAUSE_OF_KIND[obstacle.kind], level, where, *name, message, fix=obstacle_fix(obstacle))


def _arrival(case: Case) -> list[Finding]:
    """Returns a finding if a newly started worker could not unpickle the function."""
    unpickled = case.spawned.first(Unpickled) if case.spawned else None
    if unpickled is None or unpickled.raised is None or case.first_call is not None:
        return []
    raised = unpickled.raised
    evidence = f"a new process cannot find it: {raised.type}: {raised.message}"
    if raised.type == "AttributeError":
        return [finding("nameless-function", "problem", evidence)]
    return [finding("own-exception", "warning", evidence)]
