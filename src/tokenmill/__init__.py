"""tokenmill: text corpora of any size to the token files that trainers read.

>>> import tokenmill
>>> tokenmill.prepare("data/*.parquet", tokenizer="gpt2", out="data/tokens")  # doctest: +SKIP
>>> store = tokenmill.open("data/tokens")  # doctest: +SKIP
>>> store[0]  # doctest: +SKIP

Nothing heavy is imported before it is used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tokenmill.errors import TokenmillError
from tokenmill.settings import using

if TYPE_CHECKING:
    from tokenmill.api import (
        Store,
        bench,
        export,
        finish,
        locate,
        map_dataset,
        open,  # noqa: A004 - tokenmill.open is the name
        plan,
        prepare,
        report,
        stats,
        status,
        tokenize_fn,
        verify,
    )

__version__ = "0.1.0"
__all__ = [
    "Store",
    "TokenmillError",
    "bench",
    "export",
    "finish",
    "locate",
    "map_dataset",
    "open",
    "plan",
    "prepare",
    "report",
    "stats",
    "status",
    "tokenize_fn",
    "using",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name == "tokenize_fn":  # in every process that it is sent to: without the rest
        return importlib.import_module("tokenmill.drop_in").tokenize_fn
    if name in __all__:
        return getattr(importlib.import_module("tokenmill.api"), name)
    raise AttributeError(f"module 'tokenmill' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
