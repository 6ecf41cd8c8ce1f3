"""Selects the statements of a script to load: all except those that start processes.

Statements under `if __name__ == "__main__":` are skipped, except definitions that the function needs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

DEFINITIONS = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
IMPORTS = (ast.Import, ast.ImportFrom)


def is_guard(node: ast.stmt) -> bool:
    """Returns whether a statement is `if __name__ == "__main__":`."""
    if not (isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and len(node.test.comparators) == 1):
        return False
    sides = (node.test.left, node.test.comparators[0])
    return {getattr(side, "id", None) for side in sides} >= {"__name__"} and any(
        isinstance(side, ast.Constant) and side.value == "__main__" for side in sides
    )


def statements_to_load(tree: ast.Module, wanted: tuple[str, ...]) -> list[ast.stmt]:
    """Returns the unguarded statements, and the guarded ones that define what the wanted names need."""
    unguarded = [node for node in tree.body if not is_guard(node)]
    guarded = [node for guard in tree.body if is_guard(guard) for node in getattr(guard, "body", [])]
    defined = {name for node in unguarded for name in bound_names(node)}
    kept = _needed(unguarded, [node for node in guarded if isinstance(node, DEFINITIONS)], set(wanted), defined)
    return [node for node in [*unguarded, *guarded] if node in unguarded or node in kept]


def bound_names(node: ast.stmt) -> Iterator[str]:
    """Yields the names that a statement binds at its own level."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    for inner in ast.walk(node):
        if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
            yield inner.id
        elif isinstance(inner, ast.alias):
            yield inner.asname or inner.name.partition(".")[0]


def is_import(node: ast.stmt) -> bool:
    """Returns whether a statement only imports, perhaps with a fallback."""
    if isinstance(node, ast.Try):
        return any(isinstance(inner, IMPORTS) for inner in node.body)
    if isinstance(node, ast.If):
        return any(isinstance(inner, IMPORTS) for inner in [*node.body, *node.orelse])
    return isinstance(node, IMPORTS)


def enclosing_name(tree: ast.Module, function: str) -> str | None:
    """Returns the name of the function or class in which a function is defined, or None."""
    for outer in ast.walk(tree):
        if isinstance(outer, ast.FunctionDef | ast.ClassDef):
            inner = [node for node in ast.walk(outer) if isinstance(node, ast.FunctionDef) and node is not outer]
            if function in {node.name for node in inner}:
                return outer.name
    return None


def _needed(unguarded: list[ast.stmt], guarded: list[ast.stmt], wanted: set[str], defined: set[str]) -> list[ast.stmt]:
    kept: list[ast.stmt] = []
    visited: set[str] = set()
    while wanted - visited:
        name = min(wanted - visited)
        visited.add(name)
        candidates = unguarded if name in defined else guarded
        for node in candidates:
            if name in bound_names(node):
                wanted |= {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
                if node in guarded and node not in kept:
                    kept.append(node)
    return kept
