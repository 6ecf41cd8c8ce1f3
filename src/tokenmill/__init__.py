"""tokenmill: text corpora of any size to the token files that trainers read.

>>> import tokenmill
>>> tokenmill.prepare("data/*.parquet", tokenizer="gpt2", out="data/tokens")  # doctest: +SKIP
>>> store = tokenmill.open("data/tokens")  # doctest: +SKIP
>>> store[0]  # doctest: +SKIP

Heavy modules are imported on first use.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tokenmill.errors import TokenmillError
from tokenmill.system.storage_settings import using

if TYPE_CHECKING:
    from tokenmill.api import results as results
    from tokenmill.api.bench import bench
    from tokenmill.api.datasets import datasets
    from tokenmill.api.doctor import doctor
    from tokenmill.api.erase import erase
    from tokenmill.api.export import export
    from tokenmill.api.finish import finish
    from tokenmill.api.formats import formats
    from tokenmill.api.inspect import inspect
    from tokenmill.api.loader import Loader, loader
    from tokenmill.api.locate import locate
    from tokenmill.api.map_dataset import map_dataset
    from tokenmill.api.mix import mix
    from tokenmill.api.open import Store, open  # noqa: A004 - tokenmill.open is the name
    from tokenmill.api.plan import plan
    from tokenmill.api.prepare import prepare
    from tokenmill.api.report import report
    from tokenmill.api.stats import stats
    from tokenmill.api.status import status
    from tokenmill.api.tokenizers import tokenizers
    from tokenmill.api.upgrade import upgrade
    from tokenmill.api.verify import verify
    from tokenmill.tokenizers.tokenize_fn import tokenize_fn

__version__ = "0.1.0"
# The module of each public name, imported on first use.
_MODULES = {
    "Loader": "tokenmill.api.loader",
    "Store": "tokenmill.api.open",
    "bench": "tokenmill.api.bench",
    "datasets": "tokenmill.api.datasets",
    "doctor": "tokenmill.api.doctor",
    "erase": "tokenmill.api.erase",
    "export": "tokenmill.api.export",
    "finish": "tokenmill.api.finish",
    "formats": "tokenmill.api.formats",
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
    "tokenize_fn": "tokenmill.tokenizers.tokenize_fn",
    "tokenizers": "tokenmill.api.tokenizers",
    "upgrade": "tokenmill.api.upgrade",
    "verify": "tokenmill.api.verify",
}
# Functions that have the name of a package.
_PACKAGES = ("doctor", "loader", "tokenizers")

__all__ = [
    "Loader",
    "Store",
    "TokenmillError",
    "bench",
    "datasets",
    "doctor",
    "erase",
    "export",
    "finish",
    "formats",
    "inspect",
    "loader",
    "locate",
    "map_dataset",
    "mix",
    "open",
    "plan",
    "prepare",
    "report",
    "results",
    "stats",
    "status",
    "tokenize_fn",
    "tokenizers",
    "upgrade",
    "using",
    "verify",
]


if not TYPE_CHECKING:  # a type checker would take any name for a public one

    def __getattr__(name: str) -> Any:
        if name == "results":
            return importlib.import_module("tokenmill.api.results")
        if name not in _MODULES:
            raise AttributeError(f"module 'tokenmill' has no attribute {name!r}")
        value = getattr(importlib.import_module(_MODULES[name]), name)
        if name in _PACKAGES:
            # `import tokenmill.loader.torch as adapters` looks for `torch` in the module of this name.
            value.__name__ = f"{__name__}.{name}"
        return value


class _Package(ModuleType):
    """The package itself. A public function stays the attribute when the package of the same name is imported."""

    def __setattr__(self, name: str, value: object) -> None:
        # The import system sets the attribute `loader` when it has imported tokenmill/loader.
        if name not in _MODULES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
