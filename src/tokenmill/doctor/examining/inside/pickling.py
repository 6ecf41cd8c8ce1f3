"""Tests whether an object can be pickled by each library, and finds and classifies the object inside that cannot.

Runs in a process that has loaded the script, never in the doctor's process.
"""

from __future__ import annotations

import importlib
import io
import multiprocessing.reduction
import pickle
import sys
import threading
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tokenmill.doctor.examining.answers import Obstacle, ObstacleKind, Part
from tokenmill.doctor.examining.inside import paths

# A part is reported if it is at least this fraction of the pickled bytes.
LARGE_FRACTION = 0.6
MAX_PATH_CHARACTERS = 200
TOKENIZERS = ("CoreBPE", "gigatoken")
# Endings of type names, to avoid importing the types.
LOCKS = ("lock", "semaphore", "condition", "event", "barrier")
CONNECTIONS = ("connection", "cursor", "session", "client", "pool", "executor", "channel", "engine")
RESOURCES = (io.IOBase, types.ModuleType, types.GeneratorType, types.CoroutineType, threading.local)
SCRIPT_MODULES = {"__main__", "__mp_main__"}


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


def datasets_pickler() -> Pickler:
    """Returns the pickler with which datasets hashes a function, including the globals that it uses."""
    module: Any = importlib.import_module("datasets.utils._dill")
    return Pickler("datasets", module.dumps, lambda value: _trail(module.Pickler, value, recurse=True))


def obstacle(pickler: Pickler, value: Any, name: str) -> Obstacle:
    """Returns what keeps the object called `name` from being pickled."""
    trail = pickler.trail(value) or [value]
    for culprit in reversed(trail):
        path = paths.find(value, culprit, name)
        if path is not None and (culprit is trail[-1] or _pickled_bytes(pickler, culprit) is None):
            break
    else:
        culprit, path = value, name
    return Obstacle(path, type_name(culprit), *classify(culprit))


def largest(pickler: Pickler, value: Any, name: str) -> Part | None:
    """Returns the innermost part that makes up most of the pickled bytes, or None."""
    total, path, part = len(pickler.dumps(value)), name, None
    while True:
        held = [step for step in paths.steps(path, value) if not isinstance(step[1], type)]
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


def _trail(pickler_class: Any, value: Any, **options: Any) -> list[Any]:
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
        RecordingPickler(io.BytesIO(), **options).dump(value)
    except Exception:  # noqa: BLE001 - the failure is expected; only the trail matters
        return at_failure
    return []
