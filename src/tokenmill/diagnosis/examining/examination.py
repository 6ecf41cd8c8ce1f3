"""Examines a function before a run: experiments in separate processes, and their interpretation.

This process neither loads the script nor unpickles anything. It starts the experiments and reads their answers.
"""

from __future__ import annotations

import os
import tempfile

import msgspec

from tokenmill.diagnosis.causes import Check, Finding, ordered
from tokenmill.diagnosis.examining import verdicts, worker_verdicts
from tokenmill.diagnosis.examining.answers import Loaded, ProbeRequest, Role, Script
from tokenmill.diagnosis.examining.probing import ProbeProcess
from tokenmill.diagnosis.examining.script import Target, describe, parse_target
from tokenmill.diagnosis.examining.verdicts import Case, Verdict
from tokenmill.errors import UsageError
from tokenmill.humanize import Readable
from tokenmill.system import cgroups, machine, procfs

SAMPLE_SECONDS = 1.5
# The fraction of the free memory that a probe process may hold.
SAFE_FRACTION = 0.7


class Examination(Readable, msgspec.Struct, frozen=True):
    """The checks and findings. `findings` starts with the one to fix first."""

    target: str
    num_proc: int
    start_method: str
    checks: list[Check]
    findings: list[Finding]


def examine(target: str, *, num_proc: int | None = None, column: str = "text") -> Examination:
    """Examines the function `script.py:function` as if it were to run in `num_proc` processes."""
    parsed = parse_target(target)
    script = describe(parsed.tree)
    workers = num_proc or script.num_proc or machine.cores()
    with tempfile.TemporaryDirectory(prefix="tokenmill-doctor-") as folder:
        judged = _examine(parsed, script, workers, column, folder)
    findings = ordered([item for _, items in judged for item in items])
    return Examination(target, workers, script.start_method, [check for check, _ in judged], findings)


def _examine(target: Target, script: Script, num_proc: int, column: str, folder: str) -> list[Verdict]:
    """Runs the experiments one after another, and judges them."""
    available = available_bytes()
    main_bytes = int(SAFE_FRACTION * available)
    worker_bytes = min(main_bytes, available // num_proc)

    def request(role: Role) -> ProbeRequest:
        return ProbeRequest(role, target.path, target.function, column, folder, script, SAMPLE_SECONDS)

    main = ProbeProcess(request("main"), main_bytes, worker_bytes)
    loaded = main.first(Loaded)
    if loaded is None:
        return [verdicts.died_at_import(target, main)]
    if not loaded.is_callable:
        raise _load_error(target, loaded, main.stderr)
    spawned = None if script.forks else ProbeProcess(request("spawned"), worker_bytes, worker_bytes)
    case = Case(target, script, num_proc, column, available, loaded, main, spawned)
    return [
        verdicts.imports(case),
        verdicts.sending(case),
        worker_verdicts.calling(case),
        worker_verdicts.network(case),
        worker_verdicts.forks(case),
        worker_verdicts.memory(case),
        verdicts.processes(case),
    ]


def _load_error(target: Target, loaded: Loaded, stderr: str) -> UsageError:
    """Returns the error for a script that was not loaded as far as the function."""
    if loaded.exists:
        return UsageError(f"{target.function} cannot be called", f"script    {target.path}")
    raised = loaded.raised
    if raised is None:
        return target.missing()
    return UsageError(
        f"the script fails before it defines {target.function}",
        f"where     {target.line(raised.line)}",
        f"raised    {raised}",
        *[f"said      {line}" for line in stderr.strip().splitlines()[-1:] if raised.type == "SystemExit"],
        "Make it run without arguments, from this directory, up to there; or move the function above that line.",
    )


def available_bytes() -> int:
    """Returns the memory that can still be allocated on this machine and in its control groups."""
    available = [machine.memory_bytes()]
    machine_lines = procfs.read("/proc/meminfo").splitlines()
    available += [int(line.split()[1]) * 1024 for line in machine_lines if line.startswith(b"MemAvailable:")]
    for directory, version in cgroups.membership(os.getpid()):
        names = cgroups.NAMES[version]
        limit, used = (procfs.read(f"{directory}/{name}").strip() for name in (names.limit, names.used))
        if limit.isdigit() and used.isdigit() and int(limit) < cgroups.UNLIMITED:
            available.append(int(limit) - int(used) + _cached_files(directory, b"total_" if version == 1 else b""))
    return max(0, min(available))


def _cached_files(directory: str, prefix: bytes) -> int:
    """Returns the cached files in a control group, which count as used although the kernel drops them."""
    fields = dict(line.split() for line in procfs.read(f"{directory}/memory.stat").splitlines())
    return sum(int(fields.get(prefix + name, 0)) for name in (b"inactive_file", b"active_file"))
