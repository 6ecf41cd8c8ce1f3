"""The part of a script that the process which starts the others runs, without what starts them.

What stands under `if __name__ == "__main__":` is left out, except what the function needs of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

KEPT = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign)
IMPORTS = (ast.Import, ast.ImportFrom)


def is_guard(node: ast.stmt) -> bool:
    """Whether a statement is the guard."""
    if not (isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and len(node.test.comparators) == 1):
        return False
    sides = (node.test.left, node.test.comparators[0])
    return {getattr(side, "id", None) for side in sides} >= {"__name__"} and any(
        isinstance(side, ast.Constant) and side.value == "__main__" for side in sides
    )


def without_start(tree: ast.Module, wanted: tuple[str, ...]) -> list[ast.stmt]:
    """The statements that define the wanted names: all but the guarded ones, and of these what they need."""
    plain = [node for node in tree.body if not is_guard(node)]
    guarded = [node for guard in tree.body if is_guard(guard) for node in getattr(guard, "body", [])]
    defined = {name for node in plain for name in bound(node)}
    kept = _needed(plain, [node for node in guarded if isinstance(node, KEPT)], set(wanted), defined)
    return [node for node in [*plain, *guarded] if node in plain or node in kept]


def bound(node: ast.stmt) -> Iterator[str]:
    """The names that a statement gives a value to at its own level."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
        return
    for each in ast.walk(node):
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
            yield each.id
        elif isinstance(each, ast.alias):
            yield each.asname or each.name.partition(".")[0]


def is_import(node: ast.stmt) -> bool:
    """Whether a statement only imports, perhaps with a fallback."""
    if isinstance(node, ast.Try):
        return any(isinstance(each, IMPORTS) for each in node.body)
    if isinstance(node, ast.If):
        return any(isinstance(each, IMPORTS) for each in [*node.body, *node.orelse])
    return isinstance(node, IMPORTS)


def place_of(tree: ast.Module, function: str) -> str | None:
    """The function in which another is defined, for the message that it cannot be reached there."""
    for outer in ast.walk(tree):
        if isinstance(outer, ast.FunctionDef | ast.ClassDef):
            inner = [node for node in ast.walk(outer) if isinstance(node, ast.FunctionDef) and node is not outer]
            if function in {node.name for node in inner}:
                return outer.name
    return None


def _needed(plain: list[ast.stmt], guarded: list[ast.stmt], wanted: set[str], defined: set[str]) -> list[ast.stmt]:
    kept: list[ast.stmt] = []
    looked: set[str] = set()
    while wanted - looked:
        name = min(wanted - looked)
        looked.add(name)
        candidates = plain if name in defined else guarded
        for node in candidates:
            if name in bound(node):
                wanted |= {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}
                if node in guarded and node not in kept:
                    kept.append(node)
    return kept
