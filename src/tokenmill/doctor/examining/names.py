"""Resolves names in a script from its text alone."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator

CORE_COUNTS = ("os.cpu_count", "os.process_cpu_count", "multiprocessing.cpu_count", "multiprocess.cpu_count")


class ScriptNames:
    """The imports and assignments of a script."""

    def __init__(self, tree: ast.Module) -> None:
        self.imported = dict(_imports(tree))
        self.assigned: dict[str, ast.expr] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        self.assigned.setdefault(target.id, node.value)

    @property
    def packages(self) -> set[str]:
        """The top-level packages of all imports."""
        return {name.partition(".")[0] for name in self.imported.values()}

    def full_name(self, node: ast.expr, depth: int = 0) -> str:
        """Returns the full dotted name of an expression without calls.

        `mp.get_context("spawn").Pool` is `multiprocessing.get_context.Pool`.
        """
        if depth > 20:
            return ""
        if isinstance(node, ast.Attribute):
            return f"{self.full_name(node.value, depth + 1)}.{node.attr}"
        if isinstance(node, ast.Call):
            return self.full_name(node.func, depth + 1)
        if isinstance(node, ast.Name):
            if node.id in self.imported:
                return self.imported[node.id]
            value = self.assigned.get(node.id)
            return self.full_name(value, depth + 1) if isinstance(value, ast.Call) else node.id
        return ""

    def integer(self, node: ast.expr | None, depth: int = 0) -> int | None:
        """Returns the value of an integer expression, or None if the text does not determine it."""
        if depth > 20 or node is None:
            return None
        if isinstance(node, ast.Constant):
            return node.value if type(node.value) is int else None
        if isinstance(node, ast.Name):
            return self.integer(self.assigned.get(node.id), depth + 1)
        if isinstance(node, ast.Call):
            return os.cpu_count() if self.full_name(node.func) in CORE_COUNTS else None
        return self._arithmetic(node, depth) if isinstance(node, ast.BinOp) else None

    def _arithmetic(self, node: ast.BinOp, depth: int) -> int | None:
        left, right = self.integer(node.left, depth + 1), self.integer(node.right, depth + 1)
        if left is None or right is None:
            return None
        match node.op:
            case ast.Add():
                return left + right
            case ast.Sub():
                return left - right
            case ast.Mult():
                return left * right
            case ast.FloorDiv() if right:
                return left // right
        return None


def calls(tree: ast.AST) -> Iterator[ast.Call]:
    """Yields every call in the text."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """Returns a keyword argument of a call, or None."""
    return next((argument.value for argument in call.keywords if argument.arg == name), None)


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
