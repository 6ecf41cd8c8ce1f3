"""Whether an object can be pickled as each library does it, and if not, what in it cannot, and where that is.

Runs in a process that has loaded the script, never in the doctor's own.
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

LARGE_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Way:
    """A way of pickling: `trail` gives the objects it was at when it failed, outermost first."""

    name: str
    dumps: Callable[[Any], bytes]
    trail: Callable[[Any], list[Any]]


def ways(names: tuple[str, ...]) -> Iterator[Way]:
    """Those of the named ways that are installed: pickle, dill (as multiprocess does it for datasets), cloudpickle."""
    for name in names:
        try:
            yield {"pickle": _pickle, "dill": _dill, "cloudpickle": _cloudpickle}[name]()
        except ImportError:
            continue


def fingerprint_way() -> Way:
    """How datasets pickles a function to hash it: with all globals that it uses."""
    module: Any = importlib.import_module("datasets.utils._dill")
    return Way("datasets", module.dumps, lambda value: _trail(module.Pickler, value, recurse=True))


def obstacle(way: Way, value: Any, name: str) -> Obstacle:
    """What keeps the object called `name` from being pickled in this way."""
    trail = _up_to_handler(way, way.trail(value)) or [value]
    for culprit in reversed(trail):
        path = paths.find(value, culprit, name)
        if path is not None and (culprit is trail[-1] or fails(way, culprit)):
            break
    else:
        culprit, path = value, paths.Path(name, name)
    return Obstacle(
        path=path.expression,
        spoken=path.spoken,
        type=type_name(culprit),
        kind=kind_of(culprit),
        sort=sort_of(culprit),
        vocabulary=vocabulary_of(culprit),
    )


def _up_to_handler(way: Way, trail: list[Any]) -> list[Any]:
    """The trail as far as a handler of logging: what is wrong is to hold that, and not its lock."""
    for place, value in enumerate(trail):
        if isinstance(value, logging.Handler) and fails(way, value):
            return trail[: place + 1]
    return trail


def largest(way: Way, value: Any, name: str) -> Part | None:
    """The part that makes up most of the pickled bytes, as deep inside as one part does."""
    total, path, found = len(way.dumps(value)), paths.Path(name, name), None
    while True:
        parts = [(_size(way, step[2]), step) for step in paths.steps(value) if not isinstance(step[2], type)]
        bytes_, step = max(parts, key=lambda part: part[0], default=(0, ("", "", None)))
        if bytes_ < LARGE_SHARE * total or len(path.expression) > 200:
            return found
        path = paths.extend(value, path, step)
        value, found = step[2], Part(path.expression, bytes_, type_name(step[2]))


def fails(way: Way, value: Any) -> bool:
    """Whether the object by itself cannot be pickled."""
    try:
        way.dumps(value)
    except Exception:  # noqa: BLE001 - whatever pickling raises, it failed
        return True
    return False


def _size(way: Way, value: Any) -> int:
    try:
        return len(way.dumps(value))
    except Exception:  # noqa: BLE001 - what cannot be pickled alone is not part of what was pickled
        return 0


def _pickle() -> Way:
    forking = multiprocessing.reduction.ForkingPickler

    class Stock(pickle._Pickler):  # noqa: SLF001 - only this one can be followed
        dispatch = _stock_dispatch()

        def __init__(self, file: io.BytesIO) -> None:
            super().__init__(file)
            self.dispatch_table = forking(io.BytesIO()).dispatch_table

    return Way("pickle", lambda value: bytes(forking.dumps(value)), lambda value: _trail(Stock, value))


def _stock_dispatch() -> dict[type, Any]:
    """How pickle saves each type, without what dill adds as soon as it is imported."""
    stock: Any = pickle._Pickler  # noqa: SLF001
    own = {kind: save for kind, save in stock.dispatch.items() if save.__module__ == "pickle"}
    return {**own, dict: stock.save_dict, type: stock.save_type, types.FunctionType: stock.save_global}


def _dill() -> Way:
    importlib.import_module("dill")  # without it multiprocess falls back on pickle
    forking: Any = importlib.import_module("multiprocess.reduction").ForkingPickler
    return Way("dill", lambda value: bytes(forking.dumps(value)), lambda value: _trail(forking, value))


def _cloudpickle() -> Way:
    module: Any = importlib.import_module("cloudpickle")

    def trail(value: Any) -> list[Any]:
        seen: list[Any] = []

        class Noting(module.Pickler):  # type: ignore[misc]
            def reducer_override(self, value: Any) -> Any:
                seen.append(value)
                return super().reducer_override(value)

        try:
            Noting(io.BytesIO()).dump(value)
        except Exception:  # noqa: BLE001 - that it fails is known; only the trail is wanted
            return seen
        return []

    return Way("cloudpickle", module.dumps, trail)


def _trail(pickler: Any, value: Any, **options: Any) -> list[Any]:
    """The objects under way when a pickler that is written in Python fails."""
    under_way: list[Any] = []
    at_failure: list[Any] = []
    failure: list[BaseException] = []

    class Noting(pickler):  # type: ignore[misc]
        def save(self, value: Any, save_persistent_id: bool = True) -> Any:
            under_way.append(value)
            try:
                return super().save(value, save_persistent_id)
            except Exception as error:
                if error not in failure:
                    failure[:], at_failure[:] = [error], under_way
                raise
            finally:
                under_way.pop()

    Noting.__module__ = pickler.__module__  # dill goes by the name of the module that a pickler is from
    try:
        Noting(io.BytesIO(), **options).dump(value)
    except Exception:  # noqa: BLE001 - that it fails is known; only the trail is wanted
        return at_failure
    return []
