"""Whether a worker needs the network."""

from __future__ import annotations

import ast
import socket
import urllib.parse

import msgspec

from tokenmill.doctor.causes import Check, Finding, Level, finding
from tokenmill.doctor.examining.answers import Called, Loaded, Raised
from tokenmill.doctor.examining.case import Case, Verdict
from tokenmill.doctor.examining.verdicts.fixes import vocabulary_fix

REACH_SECONDS = 3.0


def vocabulary(case: Case) -> Verdict:
    """Whether a worker asked for the network, and went on without it."""
    called, loaded = case.first_call, case.spawned.first(Loaded) if case.spawned else None
    if loaded is not None and loaded.raised is not None and loaded.hosts:
        return _needed(case.target.tree, "when it imports the script", loaded.hosts, None, loaded.raised)
    if called is None:
        return Check("network", "ok", "not tried"), []
    if called.hosts and called.form is None:
        return _needed(case.target.tree, "when it is called", called.hosts, called.proxy, _why(called))
    if called.hosts:
        return Check("network", "ok", f"asks {called.hosts[0]}, and goes on without an answer"), []
    return Check("network", "ok", "a worker needs none"), []


def offline(hosts: tuple[str, ...], proxy: str | None, *evidence: str) -> Finding:
    """The finding that something is fetched; a problem if it cannot be fetched from here."""
    asked = f"it asks for {hosts[0]}"
    reached = reaches(proxy or hosts[0])
    told = "which can be reached from here, but not from everywhere" if reached else "which cannot be reached from here"
    level: Level = "warning" if reached else "problem"
    return finding("vocabulary-offline", level, f"{asked}, {told}", *evidence)


def reaches(address: str) -> bool:
    """Whether something answers at a host and port, or at a proxy's URL."""
    parts = urllib.parse.urlsplit(address if "://" in address else f"//{address}")
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 443), REACH_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def _needed(tree: ast.Module, when: str, hosts: tuple[str, ...], proxy: str | None, raised: Raised) -> Verdict:
    found = offline(hosts, proxy, f"a worker without a network raises {raised.type} {when}: {raised.message}")
    found = msgspec.structs.replace(found, fix=vocabulary_fix(raised.message, tree))
    return Check("network", found.level, f"a worker fetches from {hosts[0]}"), [found]


def _why(called: Called) -> Raised:
    return called.unready or called.raised[-1]
