"""Errors for a script that cannot be loaded or does not define the function: a usage error, or already a finding."""

from __future__ import annotations

import os
import re
import signal

from tokenmill import humanize
from tokenmill.doctor.causes import Finding, finding
from tokenmill.doctor.examining.answers import Loaded, Raised
from tokenmill.doctor.examining.case import ProbeReport
from tokenmill.doctor.examining.targets import Target, no_such_function
from tokenmill.doctor.examining.verdicts.fixes import vocabulary_fix
from tokenmill.errors import UsageError

OFFLINE = ("Connection", "Proxy", "gaierror", "URLError", "SSLError", "Timeout", "LocalEntryNotFound", "OfflineMode")
MISSING_RELATIVE_PATH = re.compile(r"No such file or directory: '([^/'][^']*)'$")


class LoadFailedError(Exception):
    """Loading failed for a cause that the doctor knows, before the function was defined."""

    def __init__(self, finding: Finding, summary: str) -> None:
        super().__init__(summary)
        self.finding = finding
        self.summary = summary


def load_error(target: Target, loaded: Loaded | None, process: ProbeReport, limit_seconds: float) -> Exception:
    """Returns the error to raise for a script that was not loaded as far as the function."""
    if loaded is None:
        return _death_error(target, process, limit_seconds)
    if loaded.misnamed is not None:
        message = f"{target.function} is a method: name an object's, such as {loaded.misnamed.instead}"
        return UsageError(message, f"script    {target.path}")
    if loaded.exists:
        return UsageError(f"{target.function} cannot be called", f"script    {target.path}")
    if loaded.late_line is not None:
        return _timeout_error(limit_seconds, target.line(loaded.late_line))
    if loaded.raised is None:
        return no_such_function(target, loaded.names)
    return _raised_error(target, loaded.raised, process.stderr)


def _raised_error(target: Target, raised: Raised, stderr: str) -> Exception:
    where = target.line(raised.line)
    if raised.type == "MemoryError":
        return LoadFailedError(finding("memory", "problem", f"MemoryError while loading {where}"), "out of memory")
    if any(name in raised.type for name in OFFLINE):
        offline = finding(
            "vocabulary-offline",
            "problem",
            f"loading stops at {where}",
            f"{raised.type}: {raised.message}",
            fix=vocabulary_fix(raised.message, target.tree),
        )
        return LoadFailedError(offline, "needs the network")
    return UsageError(
        f"the script fails before it defines {target.function}",
        f"where     {where}",
        f"raised    {raised.type}: {raised.message}",
        *[f"said      {line}" for line in stderr.strip().splitlines()[-1:] if raised.type == "SystemExit"],
        _advice(target, raised),
    )


def _advice(target: Target, raised: Raised) -> str:
    path = MISSING_RELATIVE_PATH.search(raised.message)
    if path is None:
        return "Make it run without arguments up to there, or move the function above that line."
    folder = os.path.dirname(target.path)
    while not os.path.exists(os.path.join(folder, path[1])) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    directory = folder if os.path.exists(os.path.join(folder, path[1])) else "the directory that it begins in"
    return f"{path[1]} is a relative path; run the doctor in {directory}."


def _death_error(target: Target, process: ProbeReport, limit_seconds: float) -> Exception:
    stack = [f"in Python it was at {frame}" for frame in process.stack[:3]]
    if process.end == "too late":
        return _timeout_error(limit_seconds, target.file, *stack)
    if process.end == "outgrew" or process.status == -signal.SIGKILL:
        return LoadFailedError(
            finding("memory", "problem", f"loading {target.file} takes more memory than is free", *stack), "too large"
        )
    if process.status < 0:
        name = signal.Signals(-process.status).name
        crash = finding("native-crash", "problem", f"loading {target.file} dies of {name}", *stack)
        return LoadFailedError(crash, "dies")
    if process.status > 0:
        output = [line for line in process.stderr.strip().splitlines()[-1:] if line]
        ended = f"loading {target.file} ends with code {process.status}"
        return LoadFailedError(finding("exit", "problem", ended, *output, *stack), "ends")
    return UsageError(f"{target.file} ends its own process while it is loaded", f"script    {target.path}")


def _timeout_error(limit_seconds: float, where: str, *stack: str) -> LoadFailedError:
    waited = f"after {humanize.duration(limit_seconds)} the script was still at {where}"
    return LoadFailedError(finding("work-at-import", "problem", waited, *stack), "not done in time")
