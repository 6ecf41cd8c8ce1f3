"""A small corpus that every machine has: the docstrings of Python's standard library, one JSON line each, on stdout."""

from __future__ import annotations

import ast
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path


def docstrings(source: str) -> Iterator[str]:
    """The docstrings of a module, its classes and its functions."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


for module in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
    for text in docstrings(module.read_text(encoding="utf-8")):
        if text:
            print(json.dumps({"text": text, "module": module.stem}))
