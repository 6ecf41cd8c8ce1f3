"""What the text of a script shows: the function to examine, and which library starts its processes, how, how many."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from tokenmill.diagnosis.examining.answers import Form, Script
from tokenmill.errors import UsageError

BY_DILL = {"datasets", "multiprocess", "pathos", "evaluate"}
BY_PICKLE = {"multiprocessing", "concurrent", "torch"}
# The following match the text as Python writes it: without comments, with single quotes.
PROCESS_START = re.compile(r"\b(?:Pool|Process|ProcessPoolExecutor|DataLoader)\(")
START_METHOD = re.compile(r"\b(?:set_start_method|get_context)\((?:method=)?'(fork|spawn|forkserver)'")
COUNT = re.compile(
    r"\b(?:num_proc|processes|num_workers|n_jobs|max_workers)=([\w.]+)|\b(?:Pool|ProcessPoolExecutor)\(([\w.]+)"
)


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

    def line_in(self, stack: tuple[str, ...]) -> str:
        """Returns the outermost line of the script in a stack, with its text."""
        lines = [frame.rpartition(":")[2].rstrip(")") for frame in stack if f"({self.path}:" in frame]
        return self.line(int(lines[-1]) if lines else None)

    def missing(self) -> UsageError:
        """Returns the error for a script that does not define the function."""
        for outer in ast.walk(self.tree):
            if isinstance(outer, ast.FunctionDef | ast.ClassDef) and self.function in _functions(outer):
                return UsageError(
                    f"{self.function} is defined inside {outer.name}, where only {outer.name} can reach it",
                    f"script    {self.path}",
                    "Define it at the top of the module. Then it can be examined, and sent to other processes.",
                )
        names = f"it has    {', '.join(_functions(self.tree)) or 'no functions'} (outside of if __name__ == ...)"
        return UsageError(f"the script has no function {self.function}", f"script    {self.path}", names)


def parse_target(target: str) -> Target:
    """Parses `script.py:function`. Raises UsageError if there is no such script, or no function is named."""
    path, colon, function = target.rpartition(":")
    if not colon or not path:
        path, function = target, ""
    if not os.path.isfile(path):
        raise UsageError(f"there is no script {path}", f"given     {target}", "expected  script.py:function")
    with open(path, "rb") as file:
        source = file.read()
    try:
        tree = ast.parse(source, path)
    except (SyntaxError, ValueError) as error:
        line = f"line {error.lineno}: {error.msg}" if isinstance(error, SyntaxError) else str(error)
        raise UsageError(f"{path} is not Python that this version can read", line) from None
    if not function:
        names = ", ".join(f"{path}:{name}" for name in _functions(tree)) or "script.py:function"
        raise UsageError(f"no function of {path} is named", f"given     {target}", f"expected  {names}")
    return Target(os.path.abspath(path), function, tree, tuple(source.decode(errors="replace").splitlines()))


def _functions(outer: ast.Module | ast.FunctionDef | ast.ClassDef) -> list[str]:
    return [node.name for node in outer.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def describe(tree: ast.Module) -> Script:
    """Reads from the text of a script how it will run its functions."""
    text, packages = ast.unparse(tree), set(_packages(tree))
    picklers = _picklers(text, packages)
    initializer, initargs = _initializer(tree)
    return Script(
        picklers=picklers,
        start_method=_start_method(text, packages, picklers),
        num_proc=_num_proc(text),
        forms=_forms(text, picklers),
        initializer=initializer,
        initargs=initargs,
    )


def _packages(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.partition(".")[0]


def _picklers(text: str, packages: set[str]) -> tuple[str, ...]:
    picklers = ["dill"] * bool(packages & BY_DILL)
    # Many scripts import torch, or multiprocessing for its cpu_count, but start no process with it.
    if packages & BY_PICKLE and (not picklers or PROCESS_START.search(text)):
        picklers.append("pickle")
    return tuple(picklers)


def _start_method(text: str, packages: set[str], picklers: tuple[str, ...]) -> str:
    """Returns the start method that is set by a literal, or the default."""
    match = START_METHOD.search(text)
    is_ignored = picklers == ("dill",) and "multiprocess" not in packages  # datasets does not use multiprocessing
    if match and not is_ignored:
        return match[1]
    if sys.platform == "darwin":
        return "spawn"
    return "forkserver" if sys.version_info >= (3, 14) else "fork"


def _num_proc(text: str) -> int | None:
    counts = []
    for match in COUNT.finditer(text):
        value = match[1] or match[2]
        variable = re.search(rf"^\s*{re.escape(value)} = (\d+)$", text, re.MULTILINE)
        if value.endswith("cpu_count"):
            counts.append(os.cpu_count() or 1)
        elif value.isdigit() or variable:
            counts.append(int(variable[1] if variable else value))
    return max(counts, default=0) or None


def _forms(text: str, picklers: tuple[str, ...]) -> tuple[Form, ...]:
    """Orders the forms of input. In doubt a batch comes first.

    A function for batches often accepts a row too, as a batch of characters.
    """
    if "dill" in picklers and "batched=True" not in text:
        return "row", "batch", "text"
    return ("text", "row", "batch") if picklers == ("pickle",) else ("batch", "row", "text")


def _initializer(tree: ast.Module) -> tuple[str | None, str | None]:
    for call in [node for node in ast.walk(tree) if isinstance(node, ast.Call)]:
        names = {keyword.arg: keyword.value for keyword in call.keywords}
        if ast.unparse(call.func).endswith("Pool"):
            names |= dict(zip(("processes", "initializer", "initargs"), call.args, strict=False))
        if "initializer" in names:
            initargs = names.get("initargs")
            return ast.unparse(names["initializer"]), None if initargs is None else ast.unparse(initargs)
    return None, None
