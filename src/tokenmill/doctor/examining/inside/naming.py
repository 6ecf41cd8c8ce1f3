"""Whether the name that was given is that of a class or of a method without its object."""

from __future__ import annotations

import inspect
import types
from typing import Any

from tokenmill.doctor.examining.answers import Misnamed


def misnamed(module: types.ModuleType, function: str) -> Misnamed | None:
    """What the name means instead of a function, with the name of an object that would do."""
    outer, _, last = function.rpartition(".")
    owner: Any = module
    for name in outer.split(".") if outer else ():
        owner = getattr(owner, name)
    value = getattr(owner, last)
    if isinstance(value, type):
        return Misnamed("class", _object_of(module, value))
    if isinstance(owner, type) and isinstance(inspect.getattr_static(owner, last), types.FunctionType):
        return Misnamed("method", f"{_object_of(module, owner)}.{last}")
    return None


def _object_of(module: types.ModuleType, kind: type) -> str:
    found = (name for name, value in vars(module).items() if type(value) is kind)
    return next(found, kind.__name__.lower())
