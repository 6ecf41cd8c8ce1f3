"""Finds the path from an object to one that it holds, as a Python expression: closures, attributes, items, globals.

Objects are compared by identity, so evaluating the path returns the same object.
"""

from __future__ import annotations

import functools
import types
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_OBJECTS = 200_000
LEAF_TYPES = (str, bytes, bytearray, int, float, complex, type(None), type(...), types.CodeType, types.ModuleType)
LITERAL_KEYS = (str, bytes, int, float, type(None))

# The text before and after the holder's expression, and the object that the whole evaluates to.
Step = tuple[str, str, Any]


@dataclass(frozen=True, slots=True)
class ObjectPath:
    """Where an object is: as an expression, and with the variable names of the script."""

    expression: str
    source_name: str


def find(root: Any, target: Any, name: str) -> ObjectPath | None:
    """Returns the shortest path from the object called `name` to the target, or None."""
    seen: dict[int, Any] = {id(root): root}  # keeps the objects alive, so that no id is reused
    queue = deque([(root, ObjectPath(name, name))])
    while queue and len(seen) < MAX_OBJECTS:
        holder, path = queue.popleft()
        if holder is target:
            return path
        for step in steps(holder):
            held = step[2]
            if id(held) not in seen and (held is target or not isinstance(held, LEAF_TYPES)):
                seen[id(held)] = held
                queue.append((held, extend(holder, path, step)))
    return None


def extend(holder: Any, path: ObjectPath, step: Step) -> ObjectPath:
    """Returns the path of the object that a step leads to."""
    before, after, held = step
    expression = f"{before}{path.expression}{after}"
    source_name = f"{before}{path.source_name}{after}"
    if isinstance(holder, types.FunctionType):
        source_name = _variable_name(holder, held, after) or source_name
    return ObjectPath(expression, source_name)


def steps(holder: Any) -> Iterator[Step]:
    """Yields each object that this one holds, with how to reach it."""
    if isinstance(holder, types.FunctionType):
        yield from _function_steps(holder)
    elif isinstance(holder, types.MethodType | types.BuiltinMethodType):
        yield "", ".__self__", holder.__self__
    elif isinstance(holder, functools.partial):
        yield "", ".func", holder.func
        yield from (("", f".args[{index}]", held) for index, held in enumerate(holder.args))
        yield from (("", f".keywords[{key!r}]", held) for key, held in holder.keywords.items())
    elif isinstance(holder, Mapping):
        yield from _mapping_steps(holder)
    elif isinstance(holder, list | tuple | deque):
        yield from (("", f"[{index}]", held) for index, held in enumerate(holder))
    elif isinstance(holder, set | frozenset):
        yield from (("list(", f")[{index}]", held) for index, held in enumerate(holder))
    yield from _attribute_steps(holder)


def _function_steps(function: types.FunctionType) -> Iterator[Step]:
    for index, cell in enumerate(function.__closure__ or ()):
        if cell != types.CellType():  # reading an empty cell raises
            yield "", f".__closure__[{index}].cell_contents", cell.cell_contents
    yield from (("", f".__defaults__[{index}]", held) for index, held in enumerate(function.__defaults__ or ()))
    yield from (("", f".__kwdefaults__[{key!r}]", held) for key, held in (function.__kwdefaults__ or {}).items())
    for name in global_names(function.__code__):
        if name in function.__globals__:
            yield "", f".__globals__[{name!r}]", function.__globals__[name]


def global_names(code: types.CodeType) -> Iterator[str]:
    """Yields the names that a function and its inner functions look up outside themselves."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from global_names(constant)


def _mapping_steps(mapping: Mapping[Any, Any]) -> Iterator[Step]:
    try:
        items = list(mapping.items())
    except Exception:  # noqa: BLE001 - a user's mapping may raise; then its items cannot be reached
        return
    for index, (key, held) in enumerate(items):
        if isinstance(key, LITERAL_KEYS):
            yield "", f"[{key!r}]", held
        else:
            yield "list(", f")[{index}]", key
            yield "list(", f".values())[{index}]", held


def _attribute_steps(holder: Any) -> Iterator[Step]:
    own = getattr(holder, "__dict__", None)
    if isinstance(own, dict | types.MappingProxyType):
        for name, held in list(own.items()):
            if isinstance(name, str):
                dotted = name.isidentifier() and not isinstance(holder, type)
                yield "", f".{name}" if dotted else f".__dict__[{name!r}]", held
    if isinstance(holder, type):
        return
    for name in _slot_names(type(holder)):
        try:
            yield "", f".{name}", object.__getattribute__(holder, name)
        except AttributeError:
            continue
    yield "", ".__class__", type(holder)


def _slot_names(kind: type) -> Iterator[str]:
    return (
        name
        for base in kind.__mro__
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType) and "__slots__" in vars(base)
    )


def _variable_name(function: types.FunctionType, held: Any, after: str) -> str | None:
    """Returns the name of the closure or global variable that holds the object, or None."""
    if after.startswith(".__closure__["):
        return function.__code__.co_freevars[int(after[len(".__closure__[") :].partition("]")[0])]
    if after.startswith(".__globals__["):
        return next((name for name in global_names(function.__code__) if function.__globals__.get(name) is held), None)
    return None
