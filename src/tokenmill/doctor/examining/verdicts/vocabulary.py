"""Judges whether a worker needs the network."""

from __future__ import annotations

import ast
import socket
import urllib.parse

import msgspec

from tokenmill.doctor.causes import Check, Finding, Level, finding
from tokenmill.doctor.examining.answers import Loaded, Raised
from tokenmill.doctor.examining.case import Case, Verdict
from tokenmill.doctor.examining.verdicts.fixes import vocabulary_fix

REACH_SECONDS = 3.0


def vocabulary(case: Case) -> Verdict:
    """Judges whether a worker tried to use the network, and whether it worked without it."""
    called, loaded = case.first_call, case.spawned.first(Loaded) if case.spawned else None
    if loaded is not None and loaded.raised is not None and loaded.hosts:
        return _network_needed(case.target.tree, "when it imports the script", loaded.hosts, None, loaded.raised)
    if called is None:
        return Check("network", "ok", "not tried"), []
    if called.hosts and called.form is None:
        raised = called.unready or called.raised[-1]
        return _network_needed(case.target.tree, "when it is called", called.hosts, called.proxy, raised)
    if called.hosts:
        return Check("network", "ok", f"asks {called.hosts[0]}, and goes on without an answer"), []
    return Check("network", "ok", "not needed by a worker"), []


def offline(hosts: tuple[str, ...], proxy: str | None, *evidence: str) -> Finding:
    """Returns the finding that a worker downloads something: a problem if the host cannot be reached from here."""
    asked = f"it asks for {hosts[0]}"
    reached = is_reachable(proxy or hosts[0])
    reach = (
        "which can be reached from here, but not from everywhere" if reached else "which cannot be reached from here"
    )
    level: Level = "warning" if reached else "problem"
    return finding("vocabulary-offline", level, f"{asked}, {reach}", *evidence)


def is_reachable(address: str) -> bool:
    """Returns whether a host and port, or a proxy URL, accepts connections."""
    parts = urllib.parse.urlsplit(address if "://" in address else f"//{address}")
    try:
        with socket.create_connection((parts.hostname or "", parts.port or 443), REACH_SECONDS):
            return True
    except (OSError, ValueError):
        return False


def _network_needed(tree: ast.Module, when: str, hosts: tuple[str, ...], proxy: str | None, raised: Raised) -> Verdict:
    result = offline(hosts, proxy, f"a worker without a network raises {raised.type} {when}: {raised.message}")
    result = msgspec.structs.replace(result, fix=vocabulary_fix(raised.message, tree))
    return Check("network", result.level, f"a worker fetches from {hosts[0]}"), [result]
