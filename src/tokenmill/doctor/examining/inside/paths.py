"""The way from an object to one that it holds, as Python that a person can type: closures, attributes, items, globals.

Objects are found by identity, so evaluating the path gives the very object.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_OBJECTS = 200_000
PLAIN = (str, bytes, bytearray, int, float, complex, type(None), type(...), types.CodeType, types.ModuleType)
KEYS = (str, bytes, int, float, type(None))

Step = tuple[str, str, Any]
"""What stands before and after the holder's expression, and the object that this gives."""


@dataclass(frozen=True, slots=True)
class Path:
    """Where an object is: as an expression, and as the script's own names call it."""

    expression: str
    spoken: str


def find(root: Any, target: Any, name: str) -> Path | None:
    """The shortest way from the object called `name` to the target; None if there is none."""
    seen: dict[int, Any] = {id(root): root}  # the objects are kept, so that no number is given twice
    waiting = deque([(root, Path(name, name))])
    while waiting and len(seen) < MAX_OBJECTS:
        holder, path = waiting.popleft()
        if holder is target:
            return path
        for step in steps(holder):
            held = step[2]
            if id(held) not in seen and (held is target or not isinstance(held, PLAIN)):
                seen[id(held)] = held
                waiting.append((held, extend(holder, path, step)))
    return None


def extend(holder: Any, path: Path, step: Step) -> Path:
    """The path of what a step leads to."""
    before, after, held = step
    expression = f"{before}{path.expression}{after}"
    spoken = f"{before}{path.spoken}{after}"
    if isinstance(holder, types.FunctionType):
        spoken = _variable(holder, held, after) or spoken
    return Path(expression, spoken)


def steps(holder: Any) -> Iterator[Step]:
    """Each object that this one holds, with how to get at it."""
    if isinstance(holder, types.FunctionType):
        yield from _of_function(holder)
    elif isinstance(holder, types.MethodType | types.BuiltinMethodType):
        yield "", ".__self__", holder.__self__
    elif isinstance(holder, functools.partial):
        yield "", ".func", holder.func
        yield from (("", f".args[{index}]", held) for index, held in enumerate(holder.args))
        yield from (("", f".keywords[{key!r}]", held) for key, held in holder.keywords.items())
    elif isinstance(holder, Mapping):
        yield from _of_mapping(holder)
    elif isinstance(holder, list | tuple | deque):
        yield from (("", f"[{index}]", held) for index, held in enumerate(holder))
    elif isinstance(holder, set | frozenset):
        yield from (("list(", f")[{index}]", held) for index, held in enumerate(holder))
    elif isinstance(holder, staticmethod | classmethod):
        yield "", ".__func__", holder.__func__
    elif isinstance(holder, property):
        yield from (("", f".{name}", getattr(holder, name)) for name in ("fget", "fset", "fdel"))
    yield from _attributes(holder)


def _of_function(function: types.FunctionType) -> Iterator[Step]:
    for index, cell in enumerate(function.__closure__ or ()):
        if cell != types.CellType():  # an empty cell has nothing to give
            yield "", f".__closure__[{index}].cell_contents", cell.cell_contents
    yield from (("", f".__defaults__[{index}]", held) for index, held in enumerate(function.__defaults__ or ()))
    yield from (("", f".__kwdefaults__[{key!r}]", held) for key, held in (function.__kwdefaults__ or {}).items())
    for name in global_names(function.__code__):
        if name in function.__globals__:
            yield "", f".__globals__[{name!r}]", function.__globals__[name]


def global_names(code: types.CodeType) -> Iterator[str]:
    """The names that a function looks up outside itself, also in the functions defined in it."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from global_names(constant)


def _of_mapping(mapping: Mapping[Any, Any]) -> Iterator[Step]:
    try:
        items = list(mapping.items())
    except Exception:  # noqa: BLE001 - a mapping of the user's may refuse, and then holds nothing we can reach
        return
    for index, (key, held) in enumerate(items):
        if isinstance(key, KEYS):
            yield "", f"[{key!r}]", held
        else:
            yield "list(", f")[{index}]", key
            yield "list(", f".values())[{index}]", held


def _attributes(holder: Any) -> Iterator[Step]:
    own = getattr(holder, "__dict__", None)
    if isinstance(own, dict | types.MappingProxyType):
        for name, held in list(own.items()):
            if isinstance(name, str):
                dotted = name.isidentifier() and not isinstance(holder, type)
                yield "", f".{name}" if dotted else f".__dict__[{name!r}]", held
    if isinstance(holder, type):
        return
    for name in _slots(type(holder)):
        try:
            yield "", f".{name}", object.__getattribute__(holder, name)
        except AttributeError:
            continue
    yield "", ".__class__", type(holder)


def _slots(kind: type) -> Iterator[str]:
    return (
        name
        for base in kind.__mro__
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType) and "__slots__" in vars(base)
    )


def _variable(function: types.FunctionType, held: Any, after: str) -> str | None:
    """What the function's own text calls the object, for variables of an outer function or of the module."""
    if after.startswith(".__closure__["):
        return function.__code__.co_freevars[int(after[len(".__closure__[") :].partition("]")[0])]
    if after.startswith(".__globals__["):
        return next((name for name in global_names(function.__code__) if function.__globals__.get(name) is held), None)
    return None
