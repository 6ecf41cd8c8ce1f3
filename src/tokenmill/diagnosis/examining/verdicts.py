"""Judges what is known of a function before it is called: import, pickling and process count.

Each function returns a row of the table and its findings.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from tokenmill.diagnosis.causes import Check, Finding, Level, finding
from tokenmill.diagnosis.examining.answers import Loaded, Obstacle, Pickled, Script
from tokenmill.diagnosis.examining.probing import LOAD_SECONDS, ProbeProcess
from tokenmill.diagnosis.examining.script import Target
from tokenmill.humanize import count, duration, size
from tokenmill.system import machine

Verdict = tuple[Check, list[Finding]]

# Loading that takes longer or more memory than this, apart from imports, is a warning.
LONG_SECONDS = 5.0
LARGE_BYTES = 300_000_000
CAUSE_OF_KIND = {
    "native": "captured-native-object",
    "resource": "captured-resource",
    "nameless": "nameless-function",
}
LIBRARIES = {"pickle": "pickle (multiprocessing, concurrent.futures)", "dill": "dill (datasets)"}
# A pool sends the function with every task; datasets.map sends it once to each process, so its limit is higher.
HEAVY_BYTES = {"pickle": 1_000_000, "dill": 10_000_000}
TOO_HEAVY_FACTOR = 50
# Processes per core that are a warning, and a problem. Few more than the cores are tolerated.
WARNING_PER_CORE = 4
PROBLEM_PER_CORE = 8
FEW = 3
FIXES = {
    "tokenizer": (
        "Let each process build its own, on first use:",
        '    tokenize = tokenmill.tokenize_fn("gpt2")  # or the name or file of your vocabulary',
    ),
    "lock": (
        "Make the lock at the top of the module, so that each process has its own and none is sent:",
        "    lock = threading.Lock()",
        "A lock does not reach across processes anyway; for that, pass a multiprocessing.Lock to the initializer.",
    ),
}


@dataclass(frozen=True, slots=True)
class Case:
    """Everything known about a function when its examination is judged.

    Attributes:
        main: The process that loaded the script, and forked a worker if the script's workers are forked.
        spawned: A newly started worker, None if the script's workers are forked.
    """

    target: Target
    script: Script
    num_proc: int
    column: str
    available_bytes: int
    loaded: Loaded
    main: ProbeProcess
    spawned: ProbeProcess | None

    @property
    def worker(self) -> ProbeProcess:
        """The process whose answers describe a worker."""
        return self.spawned or self.main


def died_at_import(target: Target, report: ProbeProcess) -> Verdict:
    """Judges a script whose process did not come back from loading it."""
    where = target.line_in(report.stack)
    if report.end == "slow":
        evidence = f"after {duration(LOAD_SECONDS)} the script was still at {where}"
        result = finding("work-at-import", "problem", evidence)
    elif report.end == "outgrew" or report.status == -signal.SIGKILL:
        result = finding("memory", "problem", f"loading takes more memory than is free, at {where}")
    elif report.status < 0:
        result = finding("native-crash", "problem", f"loading dies of {signal.Signals(-report.status).name} at {where}")
    else:
        output = [line for line in report.stderr.strip().splitlines()[-1:] if line]
        result = finding("exit", "problem", f"loading {target.file} ends with code {report.status}", *output)
    return Check("import", "problem", "not done"), [result]


def imports(case: Case) -> Verdict:
    """Judges whether new processes can import the script, and what it costs them."""
    if case.spawned is None:
        return Check("import", "ok", f"{duration(case.loaded.seconds)}, once{_stop(case, case.loaded)}"), []
    loaded = case.spawned.first(Loaded)
    if loaded is None:
        return died_at_import(case.target, case.spawned)
    findings = _import_findings(case, loaded)
    summary = f"{duration(loaded.seconds)}, in each process{_stop(case, loaded)}"
    return Check("import", findings[0].level if findings else "ok", summary), findings


def _stop(case: Case, loaded: Loaded) -> str:
    raised = loaded.raised
    return f"; stops at {case.target.line(raised.line)} ({raised.type})" if raised is not None else ""


def _import_findings(case: Case, loaded: Loaded) -> list[Finding]:
    raised, line = loaded.raised, loaded.process_line
    if line is not None:
        code = case.target.lines[line - 1].strip()
        fix = (f"Put line {line} and what follows under a guard:", '    if __name__ == "__main__":', f"        {code}")
        why = f"a process started by {case.script.start_method} imports the script, comes here, and starts processes"
        return [finding("main-guard", "problem", case.target.line(line), f"{why} itself", fix=fix)]
    if raised is not None and not loaded.hosts and case.loaded.raised is None:
        where = f"a new process that imports the script ends: {case.target.line(raised.line)}"
        return [finding("own-exception", "problem", where, str(raised))]
    if loaded.own_seconds > LONG_SECONDS or loaded.own_bytes > LARGE_BYTES:
        took = f"{duration(loaded.own_seconds)} and {size(max(0, loaded.own_bytes))}, imports not counted"
        longest = f"most of the time at {case.target.line(loaded.slowest_line)}"
        return [finding("work-at-import", "warning", f"each of {case.num_proc} processes spends {took}", longest)]
    return []


def sending(case: Case) -> Verdict:
    """Judges whether the libraries that send the function can pickle it."""
    answers = case.main.all(Pickled)
    by_path: dict[str, Finding] = {}
    for answer in answers:
        if answer.raised is not None:
            # It is not certain that pickle is used where dill is too, or where the text shows neither.
            is_doubtful = answer.pickler == "pickle" and case.script.picklers != ("pickle",)
            works_otherwise = any(other.raised is None for other in answers)
            found = _sending_finding(answer, "warning" if is_doubtful and works_otherwise else "problem")
            by_path.setdefault(answer.obstacle.path if answer.obstacle else "", found)
    findings = [*by_path.values(), *_heavy_tasks(case, answers)]
    results = [f"{answer.pickler} {'cannot' if answer.raised else size(answer.size_bytes or 0)}" for answer in answers]
    level: Level = min((item.level for item in findings), default="ok")  # "problem" is before "warning"
    return Check("sending", level, "; ".join(results) or "no library to try"), findings


def _sending_finding(answer: Pickled, level: Level) -> Finding:
    obstacle, message = answer.obstacle, f"{LIBRARIES[answer.pickler]}: {answer.raised}"
    if obstacle is None:
        return finding("captured-resource", level, message)
    where = f"{obstacle.path} is a {obstacle.type}"
    return finding(CAUSE_OF_KIND[obstacle.kind], level, where, message, fix=_obstacle_fix(obstacle))


def _obstacle_fix(obstacle: Obstacle) -> tuple[str, ...] | None:
    """Returns the fix for an obstacle, or None for the default fix of the cause."""
    last = obstacle.path.rpartition(".")[2].strip("_")
    name = last if last.isidentifier() else "encoder"
    if obstacle.sort == "native":
        return (
            "Let each process build its own, on first use, and call that in the function:",
            "    @functools.cache",
            f"    def {name}():",
            f"        return ...  # what makes the {obstacle.type}",
        )
    if obstacle.sort == "function":
        return ("Define it with `def` at the top of the module:", f"    def {name}(...):", "        ...")
    return FIXES.get(obstacle.sort)


def _heavy_tasks(case: Case, answers: list[Pickled]) -> list[Finding]:
    """Returns a finding if the function is large when pickled."""
    heaviest = max(answers, key=lambda answer: answer.size_bytes or 0, default=None)
    if heaviest is None or (total := heaviest.size_bytes or 0) <= HEAVY_BYTES[heaviest.pickler]:
        return []
    part = heaviest.largest
    inside = [f"{size(part.size_bytes)} of it are {part.path} ({part.type})"] if part else []
    level: Level = "problem" if total > TOO_HEAVY_FACTOR * HEAVY_BYTES[heaviest.pickler] else "warning"
    return [finding("heavy-task", level, f"{case.target.function} is {size(total)} when pickled", *inside)]


def processes(case: Case) -> Verdict:
    """Judges whether so many processes help."""
    number, cores = case.num_proc, machine.cores()
    level: Level = "ok"
    if number >= PROBLEM_PER_CORE * cores and number > cores + FEW * PROBLEM_PER_CORE:
        level = "problem"
    elif number > WARNING_PER_CORE * cores and number > cores + FEW:
        level = "warning"
    observed = f"{number} for {count(cores, 'core')}"
    fix = (f"Use one process per core: {cores}.",)
    findings = [finding("too-many-processes", level, observed, fix=fix)] if level != "ok" else []
    return Check("processes", level, observed), findings
