"""Tests whether an object can be pickled by each library, and finds the object inside it that cannot.

Runs in a process that has loaded the script, never in the doctor's process.
"""

from __future__ import annotations

import importlib
import io
import logging
import multiprocessing.reduction
import pickle
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tokenmill.doctor.examining.answers import Obstacle, Part
from tokenmill.doctor.examining.inside import paths
from tokenmill.doctor.examining.inside.obstacles import kind_of, sort_of, type_name, vocabulary_of

# A part is reported if it is at least this fraction of the pickled bytes.
LARGE_FRACTION = 0.6


@dataclass(frozen=True, slots=True)
class Pickler:
    """A pickler. `trail` returns the objects that were being pickled at the failure, outermost first."""

    name: str
    dumps: Callable[[Any], bytes]
    trail: Callable[[Any], list[Any]]


def installed_picklers(names: tuple[str, ...]) -> Iterator[Pickler]:
    """Yields those of the named picklers that are installed: pickle, dill (as multiprocess uses it), cloudpickle."""
    for name in names:
        try:
            yield {"pickle": _stock_pickler, "dill": _dill_pickler, "cloudpickle": _cloud_pickler}[name]()
        except ImportError:
            continue


def datasets_pickler() -> Pickler:
    """Returns the pickler with which datasets hashes a function, including the globals that it uses."""
    module: Any = importlib.import_module("datasets.utils._dill")
    return Pickler("datasets", module.dumps, lambda value: _trail(module.Pickler, value, recurse=True))


def obstacle(pickler: Pickler, value: Any, name: str) -> Obstacle:
    """Returns what keeps the object called `name` from being pickled."""
    trail = _up_to_handler(pickler, pickler.trail(value)) or [value]
    for culprit in reversed(trail):
        path = paths.find(value, culprit, name)
        if path is not None and (culprit is trail[-1] or fails(pickler, culprit)):
            break
    else:
        culprit, path = value, paths.ObjectPath(name, name)
    return Obstacle(
        path=path.expression,
        spoken=path.source_name,
        type=type_name(culprit),
        kind=kind_of(culprit),
        sort=sort_of(culprit),
        vocabulary=vocabulary_of(culprit),
    )


def _up_to_handler(pickler: Pickler, trail: list[Any]) -> list[Any]:
    """Cuts the trail at a logging handler: the mistake is to hold the handler, not its lock."""
    for index, value in enumerate(trail):
        if isinstance(value, logging.Handler) and fails(pickler, value):
            return trail[: index + 1]
    return trail


def largest(pickler: Pickler, value: Any, name: str) -> Part | None:
    """Returns the innermost part that makes up most of the pickled bytes, or None."""
    total, path, part = len(pickler.dumps(value)), paths.ObjectPath(name, name), None
    while True:
        parts = [(_size(pickler, step[2]), step) for step in paths.steps(value) if not isinstance(step[2], type)]
        size, step = max(parts, key=lambda item: item[0], default=(0, ("", "", None)))
        if size < LARGE_FRACTION * total or len(path.expression) > 200:
            return part
        path = paths.extend(value, path, step)
        value, part = step[2], Part(path.expression, size, type_name(step[2]))


def fails(pickler: Pickler, value: Any) -> bool:
    """Returns whether the object by itself cannot be pickled."""
    try:
        pickler.dumps(value)
    except Exception:  # noqa: BLE001 - pickling may raise anything
        return True
    return False


def _size(pickler: Pickler, value: Any) -> int:
    try:
        return len(pickler.dumps(value))
    except Exception:  # noqa: BLE001 - a part that cannot be pickled alone was not pickled
        return 0


def _stock_pickler() -> Pickler:
    forking = multiprocessing.reduction.ForkingPickler

    class StockPickler(pickle._Pickler):  # noqa: SLF001 - only the Python implementation can be traced
        dispatch = _stock_dispatch()

        def __init__(self, file: io.BytesIO) -> None:
            super().__init__(file)
            self.dispatch_table = forking(io.BytesIO()).dispatch_table

    return Pickler("pickle", lambda value: bytes(forking.dumps(value)), lambda value: _trail(StockPickler, value))


def _stock_dispatch() -> dict[type, Any]:
    """Returns how pickle saves each type, without the additions of dill."""
    stock: Any = pickle._Pickler  # noqa: SLF001
    own = {kind: save for kind, save in stock.dispatch.items() if save.__module__ == "pickle"}
    return {**own, dict: stock.save_dict, type: stock.save_type, types.FunctionType: stock.save_global}


def _dill_pickler() -> Pickler:
    importlib.import_module("dill")  # without it, multiprocess falls back to pickle
    forking: Any = importlib.import_module("multiprocess.reduction").ForkingPickler
    return Pickler("dill", lambda value: bytes(forking.dumps(value)), lambda value: _trail(forking, value))


def _cloud_pickler() -> Pickler:
    module: Any = importlib.import_module("cloudpickle")

    def trail(value: Any) -> list[Any]:
        recorded: list[Any] = []

        class RecordingCloudPickler(module.Pickler):  # type: ignore[misc]
            def reducer_override(self, value: Any) -> Any:
                recorded.append(value)
                return super().reducer_override(value)

        try:
            RecordingCloudPickler(io.BytesIO()).dump(value)
        except Exception:  # noqa: BLE001 - the failure is expected; only the trail matters
            return recorded
        return []

    return Pickler("cloudpickle", module.dumps, trail)


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
