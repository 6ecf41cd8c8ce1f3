"""Setup of tokenmill's own processes. Never called in a process that belongs to the user."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType


class _NoPandas(MetaPathFinder):
    def find_spec(self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None) -> None:
        if fullname == "pandas":
            raise ModuleNotFoundError("pandas is not used here", name=fullname)


def skip_pandas() -> None:
    """Make pandas look uninstalled.

    pyarrow imports it at the first `pa.array` to recognize its objects, which costs each process over a second
    and 30 MB. tokenmill has no such objects. `sys.modules["pandas"] = None` does not work: pyarrow takes the None.
    """
    sys.meta_path.insert(0, _NoPandas())
