"""Judges the number of processes against cores and limits, and the free disk space."""

from __future__ import annotations

import os

from tokenmill import humanize
from tokenmill.doctor.causes import Check, Level, finding
from tokenmill.doctor.examining.case import Case, Verdict
from tokenmill.system import cgroups, machine

# Processes per core that are a warning.
WARNING_PER_CORE = 4
# Processes per core that are a problem.
PROBLEM_PER_CORE = 8
# So few processes, or so few more than cores, are tolerated.
FEW = 3
# Open files that the parent needs per child.
FILES_PER_CHILD = 2
# Open files that the parent needs besides.
OTHER_FILES = 32
FULL_BYTES = 100_000_000
SMALL_BYTES = 1_000_000_000


def processes(case: Case) -> Verdict:
    """Judges whether `num_proc` processes can be started, and whether they help."""
    number, cores = case.num_proc, machine.cores()
    observed = f"{number} for {humanize.count(cores, 'core')}"
    limits = _limits(case)
    level: Level = "ok"
    if limits or (number >= PROBLEM_PER_CORE * cores and number > cores + FEW * PROBLEM_PER_CORE):
        level = "problem"
    elif number > WARNING_PER_CORE * cores and number > cores + FEW:
        level = "warning"
    if level == "ok":
        more = "; more than one for each does no good" if number > cores else ""
        return Check("processes", level, observed + more), []
    fix = (f"Use one process per core: {cores}.",)
    return Check("processes", level, observed), [finding("too-many-processes", level, observed, *limits, fix=fix)]


def disks(case: Case) -> Verdict:
    """Judges the free space where datasets writes."""
    if case.script.picklers and "dill" not in case.script.picklers:
        return Check("disk", "ok", "nothing is written by the workers' library"), []
    free_bytes = {path: machine.free_disk_bytes(path) for path in case.loaded.folders}
    findings = []
    for path, free in free_bytes.items():
        if free < SMALL_BYTES:
            evidence = f"{humanize.size(free)} are left where datasets writes: {path}"
            findings.append(finding("disk-full", "problem" if free < FULL_BYTES else "warning", evidence))
    path, free = min(free_bytes.items(), key=lambda item: item[1])
    level: Level = "ok" if not findings else "problem" if free < FULL_BYTES else "warning"
    return Check("disk", level, f"{humanize.size(free)} free in {path}"), findings


def _limits(case: Case) -> list[str]:
    """Returns the limits that `num_proc` processes exceed."""
    number, exceeded = case.num_proc, []
    files = FILES_PER_CHILD * number + OTHER_FILES
    if case.loaded.open_files is not None and files > case.loaded.open_files and number > FEW:
        exceeded.append(f"{files} open files are needed, and {case.loaded.open_files} allowed (ulimit -n)")
    if case.loaded.processes is not None and number > case.loaded.processes and os.geteuid() != 0:
        exceeded.append(f"{case.loaded.processes} processes are allowed (ulimit -u)")
    pids = cgroups.pids_limit(os.getpid())
    if pids is not None and number > pids:
        exceeded.append(f"{pids} processes and threads are allowed in this control group (pids.max)")
    return exceeded
