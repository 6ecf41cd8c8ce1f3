"""A script that cannot be loaded, or does not define the function: an error of use, or already a finding."""

from __future__ import annotations

import os
import re
import signal

from tokenmill import humanize
from tokenmill.doctor.causes import Finding, finding
from tokenmill.doctor.examining.answers import Loaded, Raised
from tokenmill.doctor.examining.case import Seen
from tokenmill.doctor.examining.targets import Target, no_such_function
from tokenmill.doctor.examining.verdicts.fixes import vocabulary_fix
from tokenmill.errors import UsageError

OFFLINE = ("Connection", "Proxy", "gaierror", "URLError", "SSLError", "Timeout", "LocalEntryNotFound", "OfflineMode")


RELATIVE = re.compile(r"No such file or directory: '([^/'][^']*)'$")


class Stillborn(Exception):
    """The script died of a cause that the doctor knows before the function could be looked at."""

    def __init__(self, found: Finding, seen: str) -> None:
        super().__init__(seen)
        self.found = found
        self.seen = seen


def stillborn(target: Target, loaded: Loaded | None, process: Seen, limit_seconds: float) -> Exception:
    """The error to raise for a script that was not loaded as far as the function."""
    if loaded is None:
        return _died(target, process, limit_seconds)
    if loaded.misnamed is not None:
        told = f"{target.function} is a method: name an object's, such as {loaded.misnamed.instead}"
        return UsageError(told, f"script    {target.path}")
    if loaded.exists:
        return UsageError(f"{target.function} cannot be called", f"script    {target.path}")
    if loaded.late_line is not None:
        return _too_late(limit_seconds, target.line(loaded.late_line))
    return (
        no_such_function(target, loaded.names)
        if loaded.raised is None
        else _failed(target, loaded.raised, process.stderr)
    )


def _failed(target: Target, raised: Raised, stderr: str) -> Exception:
    where = target.line(raised.line)
    if raised.type == "MemoryError":
        return Stillborn(finding("memory", "problem", f"MemoryError while loading {where}"), "out of memory")
    if any(sign in raised.type for sign in OFFLINE):
        found = finding(
            "vocabulary-offline",
            "problem",
            f"loading stops at {where}",
            f"{raised.type}: {raised.message}",
            fix=vocabulary_fix(raised.message, target.tree),
        )
        return Stillborn(found, "needs the network")
    return UsageError(
        f"the script fails before it defines {target.function}",
        f"where     {where}",
        f"raised    {raised.type}: {raised.message}",
        *[f"said      {line}" for line in stderr.strip().splitlines()[-1:] if raised.type == "SystemExit"],
        _advice(target, raised),
    )


def _advice(target: Target, raised: Raised) -> str:
    path = RELATIVE.search(raised.message)
    if path is None:
        return "Make it run without arguments up to there, or move the function above that line."
    folder = os.path.dirname(target.path)
    while not os.path.exists(os.path.join(folder, path[1])) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    known = folder if os.path.exists(os.path.join(folder, path[1])) else "the directory that it begins in"
    return f"{path[1]} is a relative path; run the doctor in {known}."


def _died(target: Target, process: Seen, limit_seconds: float) -> Exception:
    at = [f"in Python it was at {place}" for place in process.stack[:3]]
    if process.end == "too late":
        return _too_late(limit_seconds, target.file, *at)
    if process.end == "outgrew" or process.status == -signal.SIGKILL:
        return Stillborn(
            finding("memory", "problem", f"loading {target.file} takes more memory than is free", *at), "too large"
        )
    if process.status < 0:
        name = signal.Signals(-process.status).name
        return Stillborn(finding("native-crash", "problem", f"loading {target.file} dies of {name}", *at), "dies")
    if process.status > 0:
        told = [line for line in process.stderr.strip().splitlines()[-1:] if line]
        return Stillborn(
            finding("exit", "problem", f"loading {target.file} ends with code {process.status}", *told, *at), "ends"
        )
    return UsageError(f"{target.file} ends its own process while it is loaded", f"script    {target.path}")


def _too_late(limit_seconds: float, where: str, *at: str) -> Stillborn:
    waited = f"after {humanize.duration(limit_seconds)} the script was still at {where}"
    return Stillborn(finding("work-at-import", "problem", waited, *at), "not done in time")
