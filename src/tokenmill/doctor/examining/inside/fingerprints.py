"""The fingerprint by which datasets finds a function's results in its cache."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from tokenmill.doctor.examining.answers import Hashed
from tokenmill.doctor.examining.inside import paths, pickling
from tokenmill.doctor.examining.inside.raising import raised

MAX_PARTS = 60
DEEPEST = 4


def fingerprint(function: Any, name: str, script: str, after_call: bool) -> Hashed:
    """The fingerprint of the function, or what in it has none."""
    hasher: Any = importlib.import_module("datasets.fingerprint").Hasher
    try:
        return Hashed(after_call, digest=hasher.hash(function))
    except Exception as error:  # noqa: BLE001 - datasets takes a random fingerprint, whatever it is
        why = raised(error, script)
        return Hashed(after_call, raised=why, obstacle=pickling.obstacle(pickling.fingerprint_way(), function, name))


def parts(function: Any, name: str) -> dict[str, str]:
    """The fingerprints of what the function holds, by path."""
    hasher: Any = importlib.import_module("datasets.fingerprint").Hasher
    found: dict[str, str] = {}
    for path, value in _within(function, paths.Path(name, name), 0):
        with contextlib.suppress(Exception):  # then it has none, and only the others can be compared
            found[path.expression] = hasher.hash(value)
        if len(found) >= MAX_PARTS:
            break
    return found


def _within(value: Any, path: paths.Path, depth: int) -> Iterator[tuple[paths.Path, Any]]:
    for step in paths.steps(value):
        if depth < DEEPEST and not isinstance(step[2], type) and not step[1].endswith("__doc__']"):
            inner = paths.extend(value, path, step)
            yield inner, step[2]
            yield from _within(step[2], inner, depth + 1)
