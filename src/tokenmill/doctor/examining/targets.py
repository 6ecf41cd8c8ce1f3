"""Parses `script.py:function` from the command line."""

from __future__ import annotations

import ast
import os
from dataclasses import dataclass, field

from tokenmill.doctor.examining import guard
from tokenmill.errors import UsageError


@dataclass(frozen=True, slots=True)
class Target:
    """A function in a script."""

    path: str
    function: str
    tree: ast.Module = field(repr=False)
    lines: tuple[str, ...] = field(repr=False)

    @property
    def file(self) -> str:
        """The script's name without its directory."""
        return os.path.basename(self.path)

    def line(self, number: int | None) -> str:
        """Returns a line of the script with its text: `prepare.py:12: pool = Pool(8)`."""
        if number is None or not 0 < number <= len(self.lines):
            return self.file
        return f"{self.file}:{number}: {self.lines[number - 1].strip()}"


def parse(target: str) -> Target:
    """Returns the target. Raises UsageError if there is no such script, or no function is named."""
    path, colon, function = target.rpartition(":")
    if not colon or not path:
        path, function = target, ""
    if not os.path.isfile(path):
        raise UsageError(f"there is no script {path}", f"given     {target}", "expected  script.py:function")
    tree, lines = _read(path)
    if not function:
        raise UsageError(f"no function of {path} is named", f"given     {target}", _choices(path, tree))
    return Target(os.path.abspath(path), function, tree, lines)


def no_such_function(target: Target, names: tuple[str, ...]) -> UsageError:
    """Returns the error for a script that does not define the function."""
    outer = guard.enclosing_name(target.tree, target.function)
    if outer is not None:
        return UsageError(
            f"{target.function} is defined inside {outer}, where only {outer} can reach it",
            f"script    {target.path}",
            "Define it at the top of the module. Then it can be examined, and sent to other processes.",
        )
    names_line = f"it has    {', '.join(names)}" if names else "it has    no functions"
    return UsageError(f"the script has no function {target.function}", f"script    {target.path}", names_line)


def _read(path: str) -> tuple[ast.Module, tuple[str, ...]]:
    with open(path, "rb") as file:
        source = file.read()
    try:
        return ast.parse(source, path), tuple(source.decode(errors="replace").splitlines())
    except (SyntaxError, ValueError) as error:
        line = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"{path} is not Python that this version can read", line) from None


def _choices(path: str, tree: ast.Module) -> str:
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return f"one of    {', '.join(f'{path}:{name}' for name in names)}" if names else "expected  script.py:function"
