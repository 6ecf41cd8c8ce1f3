"""Finds the path from an object to one that it holds, in the names of the script: `encoder.core`, `tables['ranks']`.

Objects are compared by identity. What a function uses has the name of the variable.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

MAX_OBJECTS = 200_000
LEAF_TYPES = (str, bytes, bytearray, int, float, complex, type(None), type(...), types.CodeType, types.ModuleType)

# The path of a held object, and the object.
Step = tuple[str, Any]


def find(root: Any, target: Any, name: str) -> str | None:
    """Returns the shortest path from the object called `name` to the target, or None."""
    seen: dict[int, Any] = {id(root): root}  # keeps the objects alive, so that no id is reused
    queue = deque([(name, root)])
    while queue and len(seen) < MAX_OBJECTS:
        path, holder = queue.popleft()
        if holder is target:
            return path
        for step in steps(path, holder):
            held = step[1]
            if id(held) not in seen and (held is target or not isinstance(held, LEAF_TYPES)):
                seen[id(held)] = held
                queue.append(step)
    return None


def steps(path: str, holder: Any) -> Iterator[Step]:
    """Yields each object that the one at `path` holds, with its own path."""
    if isinstance(holder, types.FunctionType):
        yield from _variables(holder)
    elif isinstance(holder, types.MethodType | types.BuiltinMethodType):
        yield f"{path}.__self__", holder.__self__
    elif isinstance(holder, functools.partial):
        yield f"{path}.func", holder.func
        yield from ((f"{path}.args[{index}]", held) for index, held in enumerate(holder.args))
        yield from ((f"{path}.keywords[{key!r}]", held) for key, held in holder.keywords.items())
    elif isinstance(holder, Mapping):
        try:
            items = list(holder.items())
        except Exception:  # noqa: BLE001 - a user's mapping may raise; then its items cannot be reached
            return
        yield from ((f"{path}[{key!r}]", held) for key, held in items)
        yield from ((f"a key of {path}", key) for key, _ in items)
    elif isinstance(holder, list | tuple | deque):
        yield from ((f"{path}[{index}]", held) for index, held in enumerate(holder))
    elif isinstance(holder, set | frozenset):
        yield from ((f"an element of {path}", held) for held in holder)
    yield from _attributes(path, holder)


def _variables(function: types.FunctionType) -> Iterator[Step]:
    """Yields the variables that a function has from outside: of its closure, defaults of arguments, and globals."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        if cell != types.CellType():  # reading an empty cell raises
            yield name, cell.cell_contents
    defaults = function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    yield from ((name, function.__globals__[name]) for name in _names(code) if name in function.__globals__)


def _names(code: types.CodeType) -> Iterator[str]:
    """Yields the names that a function and its inner functions look up outside themselves."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _attributes(path: str, holder: Any) -> Iterator[Step]:
    own = getattr(holder, "__dict__", None)
    if isinstance(own, dict | types.MappingProxyType):
        yield from ((f"{path}.{name}", held) for name, held in list(own.items()))
    if isinstance(holder, type):
        return
    for base in type(holder).__mro__:
        for name, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType) and "__slots__" in vars(base):
                yield f"{path}.{name}", getattr(holder, name, None)
    yield f"the class of {path}", type(holder)
