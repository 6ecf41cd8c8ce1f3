"""Loads a script in this process, statement by statement, as the main process or a spawned child would."""

from __future__ import annotations

import ast
import functools
import os
import resource
import sys
import time
import traceback
import types
from typing import Any

from tokenmill.doctor.examining.answers import Loaded, ProbeRequest, Raised, describe_exception
from tokenmill.doctor.examining.inside.blocks import ProcessStartBlocked, blocked_starts
from tokenmill.system import machine

MAIN = "__main__"
SPAWNED_MAIN = "__mp_main__"


class LoadedScript:
    """A script that is loaded until it starts a process, raises or exits. A main process skips the guarded part."""

    def __init__(self, request: ProbeRequest, name: str) -> None:
        self.request = request
        self.module = types.ModuleType(name)
        self.raised: Raised | None = None
        self.process_line: int | None = None
        self._costs: list[tuple[float, int, ast.stmt]] = []
        self._started = time.perf_counter()
        self._install_module(name)
        with open(request.path, "rb") as file:
            tree = ast.parse(file.read(), request.path)
        futures = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
        with blocked_starts(with_multiprocess="dill" in request.script.picklers):
            try:
                for statement in tree.body:
                    if name == SPAWNED_MAIN or not _is_guard(statement):
                        self._run(statement, futures)
            except ProcessStartBlocked as blocked:
                frames = traceback.extract_tb(blocked.__traceback__)
                self.process_line = next(frame.lineno for frame in frames if frame.filename == request.path)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the exception is the answer
                self.raised = describe_exception(error, request.path)

    @property
    def function(self) -> Any:
        """The function under examination, None if loading did not reach its definition."""
        try:
            return functools.reduce(getattr, self.request.function.split("."), self.module)
        except AttributeError:
            return None

    def run_initializer(self) -> None:
        """Runs the initializer of the script's pool."""
        if self.request.script.initializer is not None:
            call = f"({self.request.script.initializer})(*({self.request.script.initargs or '()'}))"
            exec(compile(call, "<initializer>", "exec"), self.module.__dict__)  # noqa: S102 - the user's own code

    def answer(self, hosts: list[str]) -> Loaded:
        """Returns the result of loading."""
        own = [cost for cost in self._costs if not _is_import(cost[2])]
        address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
        return Loaded(
            seconds=time.perf_counter() - self._started,
            own_seconds=sum(seconds for seconds, _, _ in own),
            own_bytes=sum(held for _, held, _ in own),
            slowest_line=max(own, key=lambda cost: cost[0])[2].lineno if own else None,
            process_line=self.process_line,
            raised=self.raised,
            exists=self.function is not None,
            is_callable=callable(self.function),
            held_bytes=machine.resident_bytes(),
            address_space=None if address_space == resource.RLIM_INFINITY else address_space,
            hosts=tuple(hosts),
        )

    def _install_module(self, name: str) -> None:
        self.module.__dict__.update(__file__=self.request.path, __builtins__=__builtins__)
        sys.modules[MAIN] = sys.modules[name] = self.module
        sys.argv = [self.request.path]
        sys.path.insert(0, os.path.dirname(self.request.path))

    def _run(self, statement: ast.stmt, futures: list[ast.ImportFrom]) -> None:
        module = ast.Module([*futures, statement], [])
        code = compile(module, self.request.path, "exec", dont_inherit=True)
        started, held = time.perf_counter(), machine.resident_bytes()
        exec(code, self.module.__dict__)  # noqa: S102 - the user asked to run this script
        self._costs.append((time.perf_counter() - started, machine.resident_bytes() - held, statement))


def _is_guard(node: ast.stmt) -> bool:
    """Returns whether a statement is `if __name__ == "__main__":`."""
    return isinstance(node, ast.If) and ast.unparse(node.test) in {"__name__ == '__main__'", "'__main__' == __name__"}


def _is_import(node: ast.stmt) -> bool:
    """Returns whether a statement imports, perhaps with a fallback."""
    return any(isinstance(inner, ast.Import | ast.ImportFrom) for inner in ast.walk(node))
