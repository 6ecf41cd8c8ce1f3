"""Classifies objects that cannot be pickled."""

from __future__ import annotations

import io
import logging
import socket
import sys
import threading
import types
from typing import Any

from tokenmill.doctor.examining.answers import ObstacleKind

FUNCTIONS = (types.FunctionType, type)
SORTS_BY_TYPE: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("function", FUNCTIONS),
    ("handler", (logging.Handler,)),
    ("file", (io.IOBase,)),
    ("socket", (socket.socket,)),
    ("thread", (threading.Thread, threading.local)),
    ("module", (types.ModuleType,)),
    ("generator", (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)),
    ("frame", (types.FrameType, types.TracebackType)),
)
NAME_ENDINGS = (  # endings of type names, to avoid importing the types
    ("lock", ("lock", "semaphore", "condition", "event", "barrier")),
    ("connection", ("connection", "cursor", "session", "client", "pool", "executor", "channel", "engine")),
    ("queue", ("queue",)),
)
TOKENIZERS = ("CoreBPE", "gigatoken")


def kind_of(value: Any) -> ObstacleKind:
    """Returns which of the three causes an object is: nameless, native or resource."""
    sort = sort_of(value)
    if sort == "function":
        return "nameless"
    return "native" if sort in {"tokenizer", "native"} else "resource"


def sort_of(value: Any) -> str:
    """Returns the sort of an object: lock, file, ...; `native` for other native objects, else `object`."""
    name = type_name(value)
    if any(part in name for part in TOKENIZERS):
        return "tokenizer"
    for sort, types_ in SORTS_BY_TYPE:
        if isinstance(value, types_):
            return sort
    for sort, endings in NAME_ENDINGS:
        if type(value).__name__.lower().endswith(endings):
            return sort
    return "native" if is_native(type(value)) else "object"


def type_name(value: Any) -> str:
    """Returns the qualified type name, without uninformative modules. Functions are described instead."""
    if isinstance(value, types.FunctionType):
        outer = value.__qualname__.rpartition(".<locals>")[0]
        return "lambda" if value.__name__ == "<lambda>" else f"function defined in {outer}" if outer else "function"
    kind = type(value)
    module = "" if kind.__module__ in {"builtins", "__main__", "__mp_main__"} else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"


def is_native(kind: type) -> bool:
    """Returns whether a type is implemented in C, Rust or another native language."""
    if any(isinstance(member, types.FunctionType) for member in vars(kind).values()):
        return False
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return not (kind.__module__ in {"__main__", "__mp_main__"} or (file is not None and file.endswith(".py")))


def vocabulary_of(value: Any) -> str | None:
    """Returns the name of the tiktoken vocabulary that this object is the core of, or None."""
    registry: Any = sys.modules.get("tiktoken.registry")
    encodings = dict(registry.ENCODINGS) if registry is not None else {}
    return next((name for name, encoding in encodings.items() if getattr(encoding, "_core_bpe", None) is value), None)
