"""A test engine that dies of marked documents: it segfaults, hangs, fills its memory, aborts, exits or raises.

`environment` gives the variables under which every Python process, workers included, has this engine: a
`sitecustomize` module puts it around tokenmill's own as soon as that is loaded. POISON:<way> does it in every engine,
FASTPOISON:<way> only where the fast engine is at work, SLOWPOISON:<way> only where it is not. The way HOLD is no
death: the document takes 700 MB for a while. A document that contains WRONGTOKEN gets a wrong token from the fast
engine; with WRONG_EVERY=N in the environment, so does one document in N, chosen by a hash of its text and WRONG_SEED.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support import ROOT

HELD_BYTES = 700 << 20
WRONG = "WRONGTOKEN"
ONLY_FAST, ONLY_SLOW = "FAST", "SLOW"

_SITE = '''
import importlib.abc, importlib.machinery, sys

class Hook(importlib.abc.MetaPathFinder):
    """Poisons tokenmill.tokenization.tokenizer when it is first imported."""

    def find_spec(self, name, path=None, target=None):
        if name != "tokenmill.tokenization.tokenizer":
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            sys.path.insert(0, {tests!r})
            from tests.support import poison
            sys.path.remove({tests!r})
            poison.infect(module)

        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Hook())
'''


def environment(directory: Path) -> dict[str, str]:
    """The variables that give the engine to all Python processes; the module goes into `directory`."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "sitecustomize.py").write_text(_SITE.format(tests=str(ROOT)))
    path = os.pathsep.join(filter(None, [str(directory), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def infect(module: Any) -> None:
    """Put the poison around a tokenizer's way to encode."""
    healthy = module.Tokenizer.encode

    def encode(tokenizer: Any, text: Any) -> Any:
        for document in text.to_pylist():
            _suffer(document, fast=tokenizer._fast is not None)
        return healthy(tokenizer, text)

    module.Tokenizer.encode = encode
    right = module.GigatokenEngine.encode

    def wrong(engine: Any, text: Any) -> Any:
        encoded = right(engine, text)
        places = list(_wrong_tokens(text.to_pylist(), encoded.offsets))
        if places:
            encoded.tokens.flags.writeable = True
            encoded.tokens[places] ^= 1
        return encoded

    module.GigatokenEngine.encode = wrong


@contextmanager
def infected() -> Iterator[None]:
    """Give the engine to this process alone, for documents that raise or get a wrong token."""
    import pytest  # not in workers, which load this module as well

    from tokenmill.tokenization import tokenizer
    from tokenmill.tokenization.engines.gigatoken import GigatokenEngine

    with pytest.MonkeyPatch.context() as patch:
        for engine in (tokenizer.Tokenizer, GigatokenEngine):
            patch.setattr(engine, "encode", engine.encode)
        infect(tokenizer)
        yield


def _wrong_tokens(documents: list[str], offsets: Any) -> Iterator[int]:
    """The places of the tokens that are made wrong."""
    every, seed = int(os.environ.get("WRONG_EVERY", "0")), os.environ.get("WRONG_SEED", "")
    for number, document in enumerate(documents):
        drawn = zlib.crc32(f"{seed}{document}".encode()) if every else 0
        if (every and drawn % every == 0) or (not every and WRONG in document):
            length = int(offsets[number + 1] - offsets[number])
            if length:
                yield int(offsets[number]) + drawn // max(every, 1) % length


def _suffer(document: str, *, fast: bool) -> None:
    for word in document.split() if "POISON:" in document else ():
        marker, found, way = word.partition("POISON:")
        if found and marker != (ONLY_SLOW if fast else ONLY_FAST):
            do(way)


def do(way: str) -> None:
    """Die in this way."""
    if way == "SEGFAULT":
        ctypes.string_at(0)
    elif way == "HANG":
        while True:
            time.sleep(1)
    elif way == "ALLOCATE":
        hoard = []
        while True:
            hoard.append(_filled(16 << 20))
            time.sleep(0.002)
    elif way == "ABORT":
        os.abort()
    elif way == "EXIT":
        os._exit(7)
    elif way == "RAISE":
        raise ValueError("this document cannot be encoded")
    elif way == "HOLD":  # no death, only hunger
        held = _filled(HELD_BYTES)
        time.sleep(0.5)
        del held


def _filled(size: int) -> mmap.mmap | bytes:
    """Memory that is used, which the kernel fills at once where it can."""
    if hasattr(mmap, "MAP_POPULATE"):
        return mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
    return b"x" * size
