"""The number of processes against cores and limits, and the space on disks."""

from __future__ import annotations

import os

from tokenmill import humanize
from tokenmill.doctor.causes import Check, Finding, Level, finding
from tokenmill.doctor.examining.case import Case, Verdict
from tokenmill.system import cgroups, machine

MANY_TIMES = 4
FAR_TOO_MANY_TIMES = 8
FEW = 3
FILES_FOR_CHILD = 2
FILES_BESIDES = 32
FULL_BYTES = 100_000_000
SMALL_BYTES = 1_000_000_000


def processes(case: Case) -> Verdict:
    """Whether so many processes can be started, and whether it does any good."""
    number, cores = case.num_proc, machine.cores()
    seen = f"{number} for {humanize.count(cores, 'core')}"
    limits = _limits(case)
    level: Level = "ok"
    if limits or (number >= FAR_TOO_MANY_TIMES * cores and number > cores + FEW * FAR_TOO_MANY_TIMES):
        level = "problem"
    elif number > MANY_TIMES * cores and number > cores + FEW:
        level = "warning"
    if level == "ok":
        more = "; more than one for each does no good" if number > cores else ""
        return Check("processes", level, seen + more), []
    fix = (f"Use one process per core: {cores}.",)
    return Check("processes", level, seen), [finding("too-many-processes", level, seen, *limits, fix=fix)]


def disks(case: Case) -> Verdict:
    """Whether there is room where datasets writes."""
    if case.script.picklers and "dill" not in case.script.picklers:
        return Check("disk", "ok", "nothing is written by the workers' library"), []
    places = {path: machine.free_disk_bytes(path) for path in case.loaded.folders}
    findings = [_small(path, free) for path, free in places.items() if free < SMALL_BYTES]
    path, free = min(places.items(), key=lambda place: place[1])
    level: Level = "ok" if not findings else "problem" if free < FULL_BYTES else "warning"
    return Check("disk", level, f"{humanize.size(free)} free in {path}"), findings


def _limits(case: Case) -> list[str]:
    """The limits that so many processes run into."""
    number, found = case.num_proc, []
    files = FILES_FOR_CHILD * number + FILES_BESIDES
    if case.loaded.open_files is not None and files > case.loaded.open_files and number > FEW:
        found.append(f"{files} open files are needed, and {case.loaded.open_files} allowed (ulimit -n)")
    if case.loaded.processes is not None and number > case.loaded.processes and os.geteuid() != 0:
        found.append(f"{case.loaded.processes} processes are allowed (ulimit -u)")
    pids = cgroups.pids_limit(os.getpid())
    if pids is not None and number > pids:
        found.append(f"{pids} processes and threads are allowed in this control group (pids.max)")
    return found


def _small(path: str, free: int) -> Finding:
    level: Level = "problem" if free < FULL_BYTES else "warning"
    return finding("disk-full", level, f"{humanize.size(free)} are left where datasets writes: {path}")
