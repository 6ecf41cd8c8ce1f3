"""Sources to store: plan, drive, isolate, commit. This module itself loads nothing."""

from __future__ import annotations


def worker_modules(engine: str) -> tuple[str, ...]:
    """The modules that a worker with this engine needs: workers load them while the driver still plans."""
    fast = ("gigatoken", "awkward") if engine in ("auto", "gigatoken") else ()
    return (f"{__name__}.tokenize", *fast, "tokenizers" if engine == "tokenizers" else "tiktoken")
