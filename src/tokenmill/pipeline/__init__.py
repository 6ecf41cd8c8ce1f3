"""Sources to store: plan, drive, isolate, commit. This module itself loads nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any


def worker_modules(engine: str, tokenizers: Sequence[Any] = ()) -> tuple[str | tuple[str, ...], ...]:
    """What a worker with this engine needs: it is loaded once, while the driver still plans.

    Tokenizers by name or path are loaded, too, so that not every worker has to load them.
    """
    fast = ("gigatoken", "awkward") if engine in ("auto", "gigatoken") else ()
    names = [os.fspath(each) for each in tokenizers if isinstance(each, str | os.PathLike)]
    calls = ((f"{__name__}.unit.documents", "preload_tokenizer", name, engine) for name in names)
    return (f"{__name__}.unit.tokenize", *fast, "tokenizers" if engine == "tokenizers" else "tiktoken", *calls)
