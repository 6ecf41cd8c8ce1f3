"""Tests whether an object can be pickled by each library, and finds and classifies the object inside that cannot.

Such an object has a path in the names of the script: `encoder.core`, `tables['ranks']`. What a function uses has the
name of the variable. Runs in a process that has loaded the script, never in the doctor's process.
"""

from __future__ import annotations

import functools
import importlib
import io
import multiprocessing.reduction
import pickle
import sys
import threading
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from tokenmill.diagnosis.examining.answers import Obstacle, ObstacleKind, Part

# A part is reported if it is at least this fraction of the pickled bytes.
LARGE_FRACTION = 0.6
MAX_PATH_CHARACTERS = 200
TOKENIZERS = ("CoreBPE", "gigatoken")
# Endings of type names, to avoid importing the types.
LOCKS = ("lock", "semaphore", "condition", "event", "barrier")
CONNECTIONS = ("connection", "cursor", "session", "client", "pool", "executor", "channel", "engine")
RESOURCES = (io.IOBase, types.ModuleType, types.GeneratorType, types.CoroutineType, threading.local)
SCRIPT_MODULES = {"__main__", "__mp_main__"}
MAX_OBJECTS = 200_000
LEAF_TYPES = (str, bytes, bytearray, int, float, complex, type(None), type(...), types.CodeType, types.ModuleType)

# The path of a held object, and the object.
Step = tuple[str, Any]


@dataclass(frozen=True, slots=True)
class Pickler:
    """A pickler. `trail` returns the objects that were being pickled at the failure, outermost first."""

    name: str
    dumps: Callable[[Any], bytes]
    trail: Callable[[Any], list[Any]]


def installed_picklers(names: tuple[str, ...]) -> Iterator[Pickler]:
    """Yields those of the named picklers that are installed: pickle, and dill as multiprocess uses it."""
    for name in names:
        try:
            yield {"pickle": _stock_pickler, "dill": _dill_pickler}[name]()
        except ImportError:
            continue


def obstacle(pickler: Pickler, value: Any, name: str) -> Obstacle:
    """Returns what keeps the object called `name` from being pickled."""
    trail = pickler.trail(value) or [value]
    for culprit in reversed(trail):
        path = find_path(value, culprit, name)
        if path is not None and (culprit is trail[-1] or _pickled_bytes(pickler, culprit) is None):
            break
    else:
        culprit, path = value, name
    return Obstacle(path, type_name(culprit), *classify(culprit))


def largest(pickler: Pickler, value: Any, name: str) -> Part | None:
    """Returns the innermost part that makes up most of the pickled bytes, or None."""
    total, path, part = len(pickler.dumps(value)), name, None
    while True:
        held = [step for step in held_objects(path, value) if not isinstance(step[1], type)]
        parts = [(_pickled_bytes(pickler, step[1]) or 0, step) for step in held]
        size, step = max(parts, key=lambda item: item[0], default=(0, ("", None)))
        if size < LARGE_FRACTION * total or len(path) > MAX_PATH_CHARACTERS:
            return part
        path, value = step
        part = Part(path, size, type_name(value))


def classify(value: Any) -> tuple[ObstacleKind, str]:
    """Returns which of the three causes an object that cannot be pickled is, and the sort of object it is."""
    if isinstance(value, types.FunctionType | type):
        return "nameless", "function"
    if any(part in type_name(value) for part in TOKENIZERS):
        return "native", "tokenizer"
    name = type(value).__name__.lower()
    if name.endswith(LOCKS):
        return "resource", "lock"
    is_resource = isinstance(value, RESOURCES) or name.endswith(CONNECTIONS) or not _is_native(type(value))
    return ("resource", "other") if is_resource else ("native", "native")


def type_name(value: Any) -> str:
    """Returns the qualified type name, without uninformative modules. Functions are described instead."""
    if isinstance(value, types.FunctionType):
        outer = value.__qualname__.rpartition(".<locals>")[0]
        return "lambda" if value.__name__ == "<lambda>" else f"function defined in {outer}" if outer else "function"
    kind = type(value)
    module = "" if kind.__module__ in {"builtins", *SCRIPT_MODULES} else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"


def _is_native(kind: type) -> bool:
    """Returns whether a type is implemented in C, Rust or another native language."""
    if any(isinstance(member, types.FunctionType) for member in vars(kind).values()):
        return False
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return not (kind.__module__ in SCRIPT_MODULES or (file is not None and file.endswith(".py")))


def _pickled_bytes(pickler: Pickler, value: Any) -> int | None:
    """Returns the size of an object that is pickled by itself, None if it cannot be."""
    try:
        return len(pickler.dumps(value))
    except Exception:  # noqa: BLE001 - pickling may raise anything
        return None


def _stock_pickler() -> Pickler:
    forking = multiprocessing.reduction.ForkingPickler
    stock: Any = pickle._Pickler  # noqa: SLF001 - only the Python implementation can be traced
    own = {kind: save for kind, save in stock.dispatch.items() if save.__module__ == "pickle"}  # dill adds others

    class StockPickler(pickle._Pickler):  # noqa: SLF001
        dispatch = own | {dict: stock.save_dict, type: stock.save_type, types.FunctionType: stock.save_global}

        def __init__(self, file: io.BytesIO) -> None:
            super().__init__(file)
            self.dispatch_table = forking(io.BytesIO()).dispatch_table

    return Pickler("pickle", lambda value: bytes(forking.dumps(value)), lambda value: _trail(StockPickler, value))


def _dill_pickler() -> Pickler:
    importlib.import_module("dill")  # without it, multiprocess falls back to pickle
    forking: Any = importlib.import_module("multiprocess.reduction").ForkingPickler
    return Pickler("dill", lambda value: bytes(forking.dumps(value)), lambda value: _trail(forking, value))


def _trail(pickler_class: Any, value: Any) -> list[Any]:
    """Returns the objects that were being pickled when a pickler written in Python failed."""
    active: list[Any] = []
    at_failure: list[Any] = []
    failure: list[BaseException] = []

    class RecordingPickler(pickler_class):  # type: ignore[misc]
        def save(self, value: Any, save_persistent_id: bool = True) -> Any:
            active.append(value)
            try:
                return super().save(value, save_persistent_id)
            except Exception as error:
                if error not in failure:
                    failure[:], at_failure[:] = [error], active
                raise
            finally:
                active.pop()

    RecordingPickler.__module__ = pickler_class.__module__  # dill checks the module name of the pickler
    try:
        RecordingPickler(io.BytesIO()).dump(value)
    except Exception:  # noqa: BLE001 - the failure is expected; only the trail matters
        return at_failure
    return []


def find_path(root: Any, target: Any, name: str) -> str | None:
    """Returns the shortest path from the object called `name` to the target, or None."""
    seen: dict[int, Any] = {id(root): root}  # keeps the objects alive, so that no id is reused
    queue = deque([(name, root)])
    while queue and len(seen) < MAX_OBJECTS:
        path, holder = queue.popleft()
        if holder is target:
            return path
        for step in held_objects(path, holder):
            held = step[1]
            if id(held) not in seen and (held is target or not isinstance(held, LEAF_TYPES)):
                seen[id(held)] = held
                queue.append(step)
    return None


def held_objects(path: str, holder: Any) -> Iterator[Step]:
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
