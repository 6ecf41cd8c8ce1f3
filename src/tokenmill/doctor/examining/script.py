"""Reads from the text of a script, without running it, which library starts its processes, how, and how many."""

from __future__ import annotations

import ast
import sys
from dataclasses import dataclass

from tokenmill.doctor.examining.answers import Form
from tokenmill.doctor.examining.names import ScriptNames, calls, keyword

BY_DILL = {"datasets", "multiprocess", "pathos", "evaluate"}
BY_CLOUDPICKLE = {"ray", "joblib", "pyspark", "dask", "loky"}
BY_PICKLE = {"multiprocessing", "concurrent", "torch"}
STARTERS = {"Pool", "Process", "ProcessPoolExecutor", "DataLoader", "spawn"}
COUNT_ARGUMENTS = {"num_proc", "processes", "num_workers", "n_jobs"}
START_METHODS = {"fork", "spawn", "forkserver"}


@dataclass(frozen=True, slots=True)
class Script:
    """What the text of a script shows.

    `picklers` send the function to the workers, empty if the text does not show which. `called_at` is a line where the
    script itself calls the function. `forms` are the forms of input to try, the likeliest first.
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
        """Whether newly started workers import the script first. Those of Ray, Spark and joblib do not."""
        return self.picklers != ("cloudpickle",)


def describe(tree: ast.Module, function: str) -> Script:
    """Reads from the text of a script how it will run one of its functions."""
    names = ScriptNames(tree)
    picklers = _picklers(tree, names)
    start_method = _start_method(tree, names, picklers)
    initializer, initargs = _initializer(tree)
    return Script(
        picklers=picklers,
        uses_datasets="datasets" in names.packages,
        start_method=start_method or default_start_method(picklers),
        num_proc=_num_proc(tree, names),
        forms=_forms(tree, picklers),
        initializer=initializer,
        initargs=initargs,
        called_at=_called_at(tree, function),
    )


def default_start_method(picklers: tuple[str, ...]) -> str:
    """Returns the start method of a script that does not set one."""
    if picklers == ("cloudpickle",) or sys.platform == "darwin":
        return "spawn"
    return "forkserver" if sys.version_info >= (3, 14) else "fork"


def _picklers(tree: ast.Module, names: ScriptNames) -> tuple[str, ...]:
    packages = names.packages
    picklers = ["dill"] * bool(packages & BY_DILL) + ["cloudpickle"] * bool(packages & BY_CLOUDPICKLE)
    starts = any(
        name.partition(".")[0] in BY_PICKLE and name.rpartition(".")[2] in STARTERS
        for name in (names.full_name(call.func) for call in calls(tree))
    )
    # Many scripts import torch, or multiprocessing for its cpu_count, but start no process with it.
    if starts or (not picklers and packages & BY_PICKLE):
        picklers.append("pickle")
    return tuple(picklers)


def _start_method(tree: ast.Module, names: ScriptNames, picklers: tuple[str, ...]) -> str | None:
    """Returns the start method that is set by a literal. multiprocess ignores the setting of multiprocessing."""
    for call in calls(tree):
        name = names.full_name(call.func)
        value = call.args[0] if call.args else keyword(call, "method")
        if name.endswith("DataLoader"):
            value = keyword(call, "multiprocessing_context")
        elif not name.endswith((".set_start_method", ".get_context")):
            continue
        if picklers == ("dill",) and not name.startswith("multiprocess."):
            continue
        if isinstance(value, ast.Constant) and value.value in START_METHODS:
            return str(value.value)
    return None


def _num_proc(tree: ast.Module, names: ScriptNames) -> int | None:
    counts = []
    for call in calls(tree):
        last = names.full_name(call.func).rpartition(".")[2]
        values = [keyword(call, name) for name in COUNT_ARGUMENTS]
        if last in {"Pool", "ProcessPoolExecutor"}:
            values += [keyword(call, "max_workers"), *call.args[:1]]
        counts += [names.integer(node) for node in values]
    return max((number for number in counts if number is not None and number > 0), default=None)


def _forms(tree: ast.Module, picklers: tuple[str, ...]) -> tuple[Form, ...]:
    """Orders the forms of input. In doubt a batch comes first.

    A function for batches often accepts a row too, as a batch of characters.
    """
    batched = [keyword(call, "batched") for call in calls(tree)]
    if "dill" in picklers and not any(isinstance(node, ast.Constant) and node.value for node in batched):
        return "row", "batch", "text"
    return ("text", "row", "batch") if picklers == ("pickle",) else ("batch", "row", "text")


def _initializer(tree: ast.Module) -> tuple[str | None, str | None]:
    for call in calls(tree):
        name = getattr(call.func, "attr", getattr(call.func, "id", None))
        positional = call.args if name == "Pool" else []
        value = keyword(call, "initializer") or (positional[1] if len(positional) > 1 else None)
        if value is not None and not (isinstance(value, ast.Constant) and value.value is None):
            initargs = keyword(call, "initargs") or (positional[2] if len(positional) > 2 else None)
            return ast.unparse(value), ast.unparse(initargs) if initargs is not None else None
    return None, None


def _called_at(tree: ast.Module, function: str) -> int | None:
    definition = next((node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function), None)
    inside = {id(node) for node in ast.walk(definition)} if definition is not None else set()
    return next(
        (
            call.lineno
            for call in calls(tree)
            if isinstance(call.func, ast.Name) and call.func.id == function and id(call) not in inside
        ),
        None,
    )
