"""What the text of a script tells, without running it: which library starts its processes, how, and how many."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass

from tokenmill.doctor.examining.answers import Form
from tokenmill.doctor.examining.names import Names, calls, keyword

BY_DILL = {"datasets", "multiprocess", "pathos", "evaluate"}
BY_CLOUDPICKLE = {"ray", "joblib", "pyspark", "dask", "loky"}
BY_PICKLE = {"multiprocessing", "concurrent", "torch"}
STARTERS = {"Pool", "Process", "ProcessPoolExecutor", "DataLoader", "spawn"}
COUNTS = {"num_proc", "processes", "num_workers", "n_jobs"}
METHODS = {"fork", "spawn", "forkserver"}


@dataclass(frozen=True, slots=True)
class Script:
    """A script as its text describes it.

    `picklers` are those that its processes are fed by, none if the text does not tell; `called_at` is a line where it
    calls the function itself; `forms` are the kinds of input to try, the likeliest first.
    """

    picklers: tuple[str, ...]
    uses_datasets: bool
    start_method: str
    num_proc: int | None
    forms: tuple[Form, ...]
    initializer: str | None
    initargs: str | None
    called_at: int | None

    @property
    def imports_main(self) -> bool:
        """Whether its workers, if started anew, import the script first. Those of Ray, Spark and joblib do not."""
        return self.picklers != ("cloudpickle",)


def describe(tree: ast.Module, function: str) -> Script:
    """What the text of a script tells about how it will run one of its functions."""
    names = Names(tree)
    picklers = _picklers(tree, names)
    chosen = _start_method(tree, names, picklers)
    initializer, initargs = _initializer(tree)
    return Script(
        picklers=picklers,
        uses_datasets="datasets" in names.packages,
        start_method=chosen or default_start_method(picklers),
        num_proc=_num_proc(tree, names),
        forms=_forms(tree, picklers),
        initializer=initializer,
        initargs=initargs,
        called_at=_called_at(tree, function),
    )


def default_start_method(picklers: tuple[str, ...]) -> str:
    """How processes are started where the script says nothing."""
    if picklers == ("cloudpickle",) or sys.platform == "darwin":
        return "spawn"
    return "forkserver" if sys.version_info >= (3, 14) else "fork"


def _picklers(tree: ast.Module, names: Names) -> tuple[str, ...]:
    packages = names.packages
    found = ["dill"] * bool(packages & BY_DILL) + ["cloudpickle"] * bool(packages & BY_CLOUDPICKLE)
    starts = any(
        full.partition(".")[0] in BY_PICKLE and full.rpartition(".")[2] in STARTERS
        for full in (names.full(call.func) for call in calls(tree))
    )
    if starts or (not found and packages & BY_PICKLE):  # many import torch, or multiprocessing for its cpu_count
        found.append("pickle")
    return tuple(found)


def _start_method(tree: ast.Module, names: Names, picklers: tuple[str, ...]) -> str | None:
    """The method set by a literal. multiprocess, and so datasets, does not heed what multiprocessing is told."""
    for call in calls(tree):
        full = names.full(call.func)
        given = call.args[0] if call.args else keyword(call, "method")
        if full.endswith("DataLoader"):
            given = keyword(call, "multiprocessing_context")
        elif not full.endswith((".set_start_method", ".get_context")):
            continue
        if picklers == ("dill",) and not full.startswith("multiprocess."):
            continue
        if isinstance(given, ast.Constant) and given.value in METHODS:
            return str(given.value)
    return None


def _num_proc(tree: ast.Module, names: Names) -> int | None:
    found = []
    for call in calls(tree):
        last = names.full(call.func).rpartition(".")[2]
        given = [keyword(call, name) for name in COUNTS]
        if last in {"Pool", "ProcessPoolExecutor"}:
            given += [keyword(call, "max_workers"), *call.args[:1]]
        found += [names.integer(node) for node in given]
    return max((number for number in found if number is not None and number > 0), default=None)


def _forms(tree: ast.Module, picklers: tuple[str, ...]) -> tuple[Form, ...]:
    """A function for batches often takes a row too, as a batch of characters: so a batch is tried first if in doubt."""
    batched = [keyword(call, "batched") for call in calls(tree)]
    if "dill" in picklers and not any(isinstance(node, ast.Constant) and node.value for node in batched):
        return "row", "batch", "text"
    return ("text", "row", "batch") if picklers == ("pickle",) else ("batch", "row", "text")


def _initializer(tree: ast.Module) -> tuple[str | None, str | None]:
    for call in calls(tree):
        by_place = call.args if isinstance(call.func, ast.Attribute | ast.Name) and _name(call.func) == "Pool" else []
        given = keyword(call, "initializer") or (by_place[1] if len(by_place) > 1 else None)
        if given is not None and not (isinstance(given, ast.Constant) and given.value is None):
            initargs = keyword(call, "initargs") or (by_place[2] if len(by_place) > 2 else None)
            return ast.unparse(given), ast.unparse(initargs) if initargs is not None else None
    return None, None


def _name(node: ast.Attribute | ast.Name) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id


def _called_at(tree: ast.Module, function: str) -> int | None:
    own = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function), None)
    inside = {id(node) for node in ast.walk(own)} if own is not None else set()
    return next(
        (
            call.lineno
            for call in calls(tree)
            if isinstance(call.func, ast.Name) and call.func.id == function and id(call) not in inside
        ),
        None,
    )
