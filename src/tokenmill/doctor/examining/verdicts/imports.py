"""Judges what loading the script costs and starts, in the main process and in new workers."""

from __future__ import annotations

from tokenmill import humanize
from tokenmill.doctor.causes import Check, Finding, finding
from tokenmill.doctor.examining.answers import Loaded
from tokenmill.doctor.examining.case import Case, Verdict

LONG_SECONDS = 5.0
LARGE_BYTES = 300_000_000


def imports(case: Case) -> Verdict:
    """Judges whether new processes can import the script, and what it costs them."""
    loaded = case.loaded if case.spawned is None else case.spawned.first(Loaded)
    if loaded is None:
        why = "the workers do not import the script" if not case.script.imports_main else "a new process did not finish"
        return Check("import", "ok", why), []
    findings = _findings(case, loaded) if case.spawned is not None else []
    summary = f"{humanize.duration(loaded.seconds)}, {'once' if case.spawned is None else 'in each process'}"
    if loaded.late_line is not None:
        summary += f"; not done at {case.target.line(loaded.late_line)}"
    elif loaded.raised is not None:
        summary += f"; stops at {case.target.line(loaded.raised.line)} ({loaded.raised.type})"
    return Check("import", findings[0].level if findings else "ok", summary), findings


def script_line(case: Case, stack: tuple[str, ...]) -> str:
    """Returns the outermost line of the script in a stack, with its text."""
    lines = [frame.rpartition(":")[2].rstrip(")") for frame in stack if f"({case.target.path}:" in frame]
    return case.target.line(int(lines[-1]) if lines else None)


def _findings(case: Case, loaded: Loaded) -> list[Finding]:
    if loaded.process_line is not None:
        return [_no_guard(case, loaded.process_line)]
    if loaded.late_line is not None:
        where = case.target.line(loaded.late_line)
        return [finding("work-at-import", "problem", f"after {humanize.duration(loaded.seconds)} still at {where}")]
    raised = loaded.raised
    if raised is not None and not loaded.hosts and case.loaded.raised is None:
        where = case.target.line(raised.line)
        evidence = (f"a new process that imports the script ends: {where}", f"{raised.type}: {raised.message}")
        return [finding("own-exception", "problem", *evidence)]
    if loaded.own_seconds > LONG_SECONDS or loaded.own_bytes > LARGE_BYTES:
        seconds, memory = humanize.duration(loaded.own_seconds), humanize.size(max(0, loaded.own_bytes))
        took = f"{seconds} and {memory}, imports not counted"
        longest = f"most of the time at {case.target.line(loaded.slowest_line)}"
        return [finding("work-at-import", "warning", f"each of {case.num_proc} processes spends {took}", longest)]
    return []


def _no_guard(case: Case, line: int) -> Finding:
    text = case.target.lines[line - 1].strip()
    return finding(
        "main-guard",
        "problem",
        f"{case.target.line(line)}",
        f"a process started by {case.script.start_method} imports the script, comes here, and starts processes itself",
        fix=(f"Put line {line} and what follows under a guard:", '    if __name__ == "__main__":', f"        {text}"),
    )
