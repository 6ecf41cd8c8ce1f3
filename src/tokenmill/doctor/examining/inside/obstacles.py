"""What sort of thing an object is that cannot be pickled."""

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
SORTS: tuple[tuple[str, tuple[type, ...]], ...] = (
    ("function", FUNCTIONS),
    ("handler", (logging.Handler,)),
    ("file", (io.IOBase,)),
    ("socket", (socket.socket,)),
    ("thread", (threading.Thread, threading.local)),
    ("module", (types.ModuleType,)),
    ("generator", (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)),
    ("frame", (types.FrameType, types.TracebackType)),
)
NAMES = (  # for types that are not worth an import: what their names end with
    ("lock", ("lock", "semaphore", "condition", "event", "barrier")),
    ("connection", ("connection", "cursor", "session", "client", "pool", "executor", "channel", "engine")),
    ("queue", ("queue",)),
)
TOKENIZERS = ("CoreBPE", "gigatoken")


def kind_of(value: Any) -> ObstacleKind:
    """Which of the three causes this object is: nameless, native or a resource."""
    sort = sort_of(value)
    if sort == "function":
        return "nameless"
    return "native" if sort in {"tokenizer", "native"} else "resource"


def sort_of(value: Any) -> str:
    """What to call it: a lock, a file, ...; `native` for other objects of native code, else `object`."""
    name = type_name(value)
    if any(mark in name for mark in TOKENIZERS):
        return "tokenizer"
    for sort, types_ in SORTS:
        if isinstance(value, types_):
            return sort
    for sort, endings in NAMES:
        if type(value).__name__.lower().endswith(endings):
            return sort
    return "native" if is_native(type(value)) else "object"


def type_name(value: Any) -> str:
    """The type with its module, without one that says nothing; of functions, what is special about them."""
    if isinstance(value, types.FunctionType):
        outer = value.__qualname__.rpartition(".<locals>")[0]
        return "lambda" if value.__name__ == "<lambda>" else f"function defined in {outer}" if outer else "function"
    kind = type(value)
    module = "" if kind.__module__ in {"builtins", "__main__", "__mp_main__"} else f"{kind.__module__}."
    return f"{module}{kind.__qualname__}"


def is_native(kind: type) -> bool:
    """Whether a type is written in C, Rust or the like."""
    if any(isinstance(member, types.FunctionType) for member in vars(kind).values()):
        return False
    module = sys.modules.get(kind.__module__)
    file = getattr(module, "__file__", None)
    return not (kind.__module__ in {"__main__", "__mp_main__"} or (file is not None and file.endswith(".py")))


def vocabulary_of(value: Any) -> str | None:
    """The name of the vocabulary if this is the core of one that tiktoken knows by name."""
    registry: Any = sys.modules.get("tiktoken.registry")
    known = dict(registry.ENCODINGS) if registry is not None else {}
    return next((name for name, encoding in known.items() if getattr(encoding, "_core_bpe", None) is value), None)
