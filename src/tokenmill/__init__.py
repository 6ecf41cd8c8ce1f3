"""tokenmill: text corpora of any size to the token files that trainers read.

>>> import tokenmill
>>> tokenmill.prepare("data/*.parquet", tokenizer="gpt2", out="data/tokens")  # doctest: +SKIP
>>> store = tokenmill.open("data/tokens")  # doctest: +SKIP
>>> store[0]  # doctest: +SKIP

Heavy modules are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tokenmill.errors import TokenmillError as TokenmillError
from tokenmill.system.storage_settings import using as using

if TYPE_CHECKING:
    from tokenmill import results as results
    from tokenmill.api.bench import bench as bench
    from tokenmill.api.datasets import datasets as datasets
    from tokenmill.api.doctor import doctor as doctor
    from tokenmill.api.erase import erase as erase
    from tokenmill.api.export import export as export
    from tokenmill.api.finish import finish as finish
    from tokenmill.api.formats import formats as formats
    from tokenmill.api.identify import identify as identify
    from tokenmill.api.inspect import inspect as inspect
    from tokenmill.api.loader import Loader as Loader
    from tokenmill.api.loader import loader as loader
    from tokenmill.api.locate import locate as locate
    from tokenmill.api.map_dataset import map_dataset as map_dataset
    from tokenmill.api.mix import mix as mix
    from tokenmill.api.open import Store as Store
    from tokenmill.api.open import open as open  # noqa: A004 - tokenmill.open is the name
    from tokenmill.api.plan import plan as plan
    from tokenmill.api.prepare import prepare as prepare
    from tokenmill.api.report import report as report
    from tokenmill.api.stats import stats as stats
    from tokenmill.api.status import status as status
    from tokenmill.api.template import template as template
    from tokenmill.api.tokenizers import tokenizers as tokenizers
    from tokenmill.api.verify import verify as verify
    from tokenmill.api.writer import Writer as Writer
    from tokenmill.api.writer import writer as writer
    from tokenmill.tokenization.tokenize_fn import tokenize_fn as tokenize_fn

__version__ = "0.1.0"
# The module of each public name, imported on first use.
_MODULES = {
    "Loader": "tokenmill.api.loader",
    "Store": "tokenmill.api.open",
    "Writer": "tokenmill.api.writer",
    "bench": "tokenmill.api.bench",
    "datasets": "tokenmill.api.datasets",
    "doctor": "tokenmill.api.doctor",
    "erase": "tokenmill.api.erase",
    "export": "tokenmill.api.export",
    "finish": "tokenmill.api.finish",
    "formats": "tokenmill.api.formats",
    "identify": "tokenmill.api.identify",
    "inspect": "tokenmill.api.inspect",
    "loader": "tokenmill.api.loader",
    "locate": "tokenmill.api.locate",
    "map_dataset": "tokenmill.api.map_dataset",
    "mix": "tokenmill.api.mix",
    "open": "tokenmill.api.open",
    "plan": "tokenmill.api.plan",
    "prepare": "tokenmill.api.prepare",
    "report": "tokenmill.api.report",
    "stats": "tokenmill.api.stats",
    "status": "tokenmill.api.status",
    "tokenize_fn": "tokenmill.tokenization.tokenize_fn",
    "template": "tokenmill.api.template",
    "tokenizers": "tokenmill.api.tokenizers",
    "verify": "tokenmill.api.verify",
    "writer": "tokenmill.api.writer",
}

__all__ = ["TokenmillError", "results", "using", *_MODULES]  # noqa: PLE0604 - its keys are strings


if not TYPE_CHECKING:  # a type checker would take any name for a public one

    def __getattr__(name: str) -> Any:
        if name == "results":
            return importlib.import_module("tokenmill.results")
        if name not in _MODULES:
            raise AttributeError(f"module 'tokenmill' has no attribute {name!r}")
        return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
