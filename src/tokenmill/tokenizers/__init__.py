"""Tokenizers: specs in, exact tokens out. This module itself loads nothing."""

from __future__ import annotations


def engine_modules(wanted: str) -> tuple[str, ...]:
    """What a worker with this engine will need, to be loaded while something else is waited for."""
    fast = ("gigatoken", "awkward") if wanted in ("auto", "gigatoken") else ()
    return ("tokenmill.work", *fast, "tokenizers" if wanted == "tokenizers" else "tiktoken")
