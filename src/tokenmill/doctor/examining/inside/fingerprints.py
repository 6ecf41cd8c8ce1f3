"""Computes the fingerprint by which datasets finds a function's results in its cache."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

from tokenmill.doctor.examining.answers import Hashed, describe_exception
from tokenmill.doctor.examining.inside import paths, pickling

MAX_PARTS = 60
MAX_DEPTH = 4


def fingerprint(function: Any, name: str, script: str, after_call: bool) -> Hashed:
    """Returns the fingerprint of the function, or the object in it that has none."""
    hasher: Any = importlib.import_module("datasets.fingerprint").Hasher
    try:
        return Hashed(after_call, digest=hasher.hash(function))
    except Exception as error:  # noqa: BLE001 - datasets then uses a random fingerprint
        obstacle = pickling.obstacle(pickling.datasets_pickler(), function, name)
        return Hashed(after_call, raised=describe_exception(error, script), obstacle=obstacle)


def parts(function: Any, name: str) -> dict[str, str]:
    """Returns the fingerprints of the objects that the function holds, by path."""
    hasher: Any = importlib.import_module("datasets.fingerprint").Hasher
    digests: dict[str, str] = {}
    for path, value in _nested_objects(function, paths.ObjectPath(name, name), 0):
        with contextlib.suppress(Exception):  # an object without a fingerprint cannot be compared
            digests[path.expression] = hasher.hash(value)
        if len(digests) >= MAX_PARTS:
            break
    return digests


def _nested_objects(value: Any, path: paths.ObjectPath, depth: int) -> Iterator[tuple[paths.ObjectPath, Any]]:
    for step in paths.steps(value):
        if depth < MAX_DEPTH and not isinstance(step[2], type) and not step[1].endswith("__doc__']"):
            inner = paths.extend(value, path, step)
            yield inner, step[2]
            yield from _nested_objects(step[2], inner, depth + 1)
