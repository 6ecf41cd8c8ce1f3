"""What the text of a script shows: the function to examine, and which library starts its processes, how, how many."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field

from tokenmill.doctor.examining.answers import Form, Script
from tokenmill.errors import UsageError

BY_DILL = {"datasets", "multiprocess", "pathos", "evaluate"}
BY_PICKLE = {"multiprocessing", "concurrent", "torch"}
STARTERS = {"Pool", "Process", "ProcessPoolExecutor", "DataLoader", "spawn"}
COUNT_ARGUMENTS = ("num_proc", "processes", "num_workers", "n_jobs", "max_workers")
CORE_COUNTS = ("os.cpu_count", "os.process_cpu_count", "multiprocessing.cpu_count", "multiprocess.cpu_count")
START_METHODS = {"fork", "spawn", "forkserver"}
MAX_DEPTH = 20


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
    names = _Names(tree)
    picklers = _picklers(names)
    initializer, initargs = _initializer(names)
    return Script(
        picklers=picklers,
        uses_datasets="datasets" in names.packages,
        start_method=_start_method(names, picklers) or default_start_method(),
        num_proc=_num_proc(names),
        forms=_forms(names, picklers),
        initializer=initializer,
        initargs=initargs,
    )


def default_start_method() -> str:
    """Returns the start method of a script that does not set one."""
    if sys.platform == "darwin":
        return "spawn"
    return "forkserver" if sys.version_info >= (3, 14) else "fork"


class _Names:
    """The imports, assignments and calls of a script."""

    def __init__(self, tree: ast.Module) -> None:
        nodes = list(ast.walk(tree))
        self.imported = dict(alias for node in nodes for alias in _aliases(node))
        self.packages = {name.partition(".")[0] for name in self.imported.values()}
        self.calls = [node for node in nodes if isinstance(node, ast.Call)]
        self.assigned: dict[str, ast.expr] = {}
        for node in nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        self.assigned.setdefault(target.id, node.value)

    def full_name(self, node: ast.expr, depth: int = 0) -> str:
        """Returns the full dotted name of an expression without calls.

        `mp.get_context("spawn").Pool` is `multiprocessing.get_context.Pool`.
        """
        if depth > MAX_DEPTH:
            return ""
        if isinstance(node, ast.Attribute):
            return f"{self.full_name(node.value, depth + 1)}.{node.attr}"
        if isinstance(node, ast.Call):
            return self.full_name(node.func, depth + 1)
        if isinstance(node, ast.Name):
            value = self.assigned.get(node.id)
            if node.id not in self.imported and isinstance(value, ast.Call):
                return self.full_name(value, depth + 1)
            return self.imported.get(node.id, node.id)
        return ""

    def integer(self, node: ast.expr | None) -> int | None:
        """Returns the value of an integer, a variable that holds one, or a count of the cores; else None."""
        if isinstance(node, ast.Name):
            node = self.assigned.get(node.id)
        if isinstance(node, ast.Constant):
            return node.value if type(node.value) is int else None
        is_core_count = isinstance(node, ast.Call) and self.full_name(node.func) in CORE_COUNTS
        return os.cpu_count() if is_core_count else None


def _aliases(node: ast.AST) -> Iterator[tuple[str, str]]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield (alias.asname, alias.name) if alias.asname else (alias.name.partition(".")[0],) * 2
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((argument.value for argument in call.keywords if argument.arg == name), None)


def _picklers(names: _Names) -> tuple[str, ...]:
    picklers = ["dill"] * bool(names.packages & BY_DILL)
    called = [names.full_name(call.func) for call in names.calls]
    starts = any(name.partition(".")[0] in BY_PICKLE and name.rpartition(".")[2] in STARTERS for name in called)
    # Many scripts import torch, or multiprocessing for its cpu_count, but start no process with it.
    if starts or (not picklers and names.packages & BY_PICKLE):
        picklers.append("pickle")
    return tuple(picklers)


def _start_method(names: _Names, picklers: tuple[str, ...]) -> str | None:
    """Returns the start method that is set by a literal. multiprocess ignores the setting of multiprocessing."""
    for call in names.calls:
        name = names.full_name(call.func)
        is_ours = name.startswith("multiprocess.") or picklers != ("dill",)
        if is_ours and name.endswith((".set_start_method", ".get_context")):
            value = call.args[0] if call.args else _keyword(call, "method")
            if isinstance(value, ast.Constant) and value.value in START_METHODS:
                return str(value.value)
    return None


def _num_proc(names: _Names) -> int | None:
    counts = []
    for call in names.calls:
        values = [_keyword(call, name) for name in COUNT_ARGUMENTS]
        if names.full_name(call.func).rpartition(".")[2] in {"Pool", "ProcessPoolExecutor"}:
            values += call.args[:1]
        counts += [names.integer(node) for node in values]
    return max((number for number in counts if number is not None and number > 0), default=None)


def _forms(names: _Names, picklers: tuple[str, ...]) -> tuple[Form, ...]:
    """Orders the forms of input. In doubt a batch comes first.

    A function for batches often accepts a row too, as a batch of characters.
    """
    batched = [_keyword(call, "batched") for call in names.calls]
    if "dill" in picklers and not any(isinstance(node, ast.Constant) and node.value for node in batched):
        return "row", "batch", "text"
    return ("text", "row", "batch") if picklers == ("pickle",) else ("batch", "row", "text")


def _initializer(names: _Names) -> tuple[str | None, str | None]:
    for call in names.calls:
        positional = call.args if getattr(call.func, "attr", getattr(call.func, "id", None)) == "Pool" else []
        value = _keyword(call, "initializer") or (positional[1] if len(positional) > 1 else None)
        if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            initargs = _keyword(call, "initargs") or (positional[2] if len(positional) > 2 else None)
            return ast.unparse(value), ast.unparse(initargs) if initargs is not None else None
    return None, None
