"""Loads a script in this process, statement by statement, as the main process or a spawned child would."""

from __future__ import annotations
import __future__

import ast
import contextlib
import inspect
import os
import resource
import signal
import sys
import tempfile
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

from tokenmill.doctor.examining import guard
from tokenmill.doctor.examining.answers import Loaded, Misnamed, ProbeRequest, Raised, describe_exception
from tokenmill.doctor.examining.inside.start_guard import ProcessStartBlocked, StartGuard, line_in
from tokenmill.system import machine

MAIN = "__main__"
SPAWNED_MAIN = "__mp_main__"
DILL_PACKAGES = ("datasets", "multiprocess", "pathos")


class LoadTimeout(BaseException):
    """Loading took too long. A BaseException, so that scripts do not catch it."""


class ScriptLoader:
    """Loads a script: holds its module and the cost of each statement."""

    def __init__(self, request: ProbeRequest) -> None:
        self.request = request
        self.module = types.ModuleType(MAIN)
        self.raised: Raised | None = None
        self.stopped = False
        self.late_line: int | None = None
        self.costs: list[tuple[float, int, ast.stmt]] = []
        with open(request.script, "rb") as file:
            self.source = file.read()
        self.tree = ast.parse(self.source, request.script)

    def run(self, name: str, start_guard: StartGuard) -> None:
        """Runs the script as a module of that name until it starts a process, raises or exits."""
        self._install_module(name)
        needed_names = (self.request.function.partition(".")[0], *self._initializer_names())
        statements = self.tree.body if name == SPAWNED_MAIN else guard.statements_to_load(self.tree, needed_names)
        flags = _future_flags(self.tree)
        uses_dill = any(package.encode() in self.source for package in DILL_PACKAGES)
        with start_guard.active(uses_dill), self._time_limit():
            try:
                for statement in statements:
                    self._run_statement(statement, flags)
            except (ProcessStartBlocked, LoadTimeout):
                self.stopped = True
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the exception is the answer
                self.raised = describe_exception(error, self.request.script)

    def function(self) -> Any:
        """Returns the function under examination."""
        value: Any = self.module
        for name in self.request.function.split("."):
            value = getattr(value, name)
        return value

    @property
    def exists(self) -> bool:
        """Whether loading reached the definition of the function."""
        try:
            self.function()
        except AttributeError:
            return False
        return True

    def run_initializer(self) -> None:
        """Runs the initializer of the script's pool."""
        if self.request.initializer is not None:
            call = f"({self.request.initializer})(*({self.request.initargs or '()'}))"
            exec(compile(call, "<initializer>", "exec"), self.module.__dict__)  # noqa: S102 - the user's own code

    def answer(self, seconds: float, line: int | None, hosts: tuple[str, ...]) -> Loaded:
        """Returns the result of loading."""
        own = [cost for cost in self.costs if not guard.is_import(cost[2])]
        exists = self.exists
        return Loaded(
            seconds=seconds,
            own_seconds=sum(cost[0] for cost in own),
            own_bytes=sum(cost[1] for cost in own),
            slowest_line=max(own, key=lambda cost: cost[0])[2].lineno if own else None,
            process_line=line,
            late_line=self.late_line,
            raised=self.raised,
            exists=exists,
            is_callable=exists and callable(self.function()),
            names=_function_names(self.module),
            threads=machine.threads(),
            held_bytes=machine.resident_bytes(),
            address_space=_limit(resource.RLIMIT_AS),
            open_files=_limit(resource.RLIMIT_NOFILE),
            processes=_limit(resource.RLIMIT_NPROC),
            folders=_folders(),
            hosts=hosts,
            misnamed=_misnamed(self.module, self.request.function) if exists else None,
        )

    def _install_module(self, name: str) -> None:
        self.module.__dict__.update(__name__=name, __file__=self.request.script, __builtins__=__builtins__)
        sys.modules[MAIN] = self.module
        if name == SPAWNED_MAIN:
            sys.modules[SPAWNED_MAIN] = self.module
        sys.argv = [self.request.script]
        sys.path.insert(0, os.path.dirname(self.request.script))

    @contextlib.contextmanager
    def _time_limit(self) -> Iterator[None]:
        def on_alarm(_: int, frame: types.FrameType | None) -> None:
            self.late_line = line_in(self.request.script, frame) or 0
            raise LoadTimeout

        before = signal.signal(signal.SIGALRM, on_alarm)
        signal.setitimer(signal.ITIMER_REAL, self.request.load_seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _run_statement(self, statement: ast.stmt, flags: int) -> None:
        code = compile(ast.Module([statement], []), self.request.script, "exec", flags=flags, dont_inherit=True)
        started, held = time.perf_counter(), machine.resident_bytes()
        exec(code, self.module.__dict__)  # noqa: S102 - the user asked to run this script
        self.costs.append((time.perf_counter() - started, machine.resident_bytes() - held, statement))

    def _initializer_names(self) -> list[str]:
        text = f"({self.request.initializer}, {self.request.initargs})"
        return [node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]


def load(
    request: ProbeRequest, name: str, hosts: Callable[[], tuple[str, ...]], report: Callable[[Loaded], None]
) -> ScriptLoader:
    """Loads the script under that name and reports the result."""
    loader = ScriptLoader(request)
    started = time.perf_counter()

    def finish() -> None:
        report(loader.answer(time.perf_counter() - started, start_guard.line, hosts()))

    start_guard = StartGuard(request.script, on_thread=finish)
    loader.run(name, start_guard)
    finish()
    return loader


def _misnamed(module: types.ModuleType, function: str) -> Misnamed | None:
    """Returns what the name refers to if it is a class or an unbound method, with a name that would work."""
    outer, _, last = function.rpartition(".")
    owner: Any = module
    for name in outer.split(".") if outer else ():
        owner = getattr(owner, name)
    value = getattr(owner, last)
    if isinstance(value, type):
        return Misnamed("class", _instance_name(module, value))
    if isinstance(owner, type) and isinstance(inspect.getattr_static(owner, last), types.FunctionType):
        return Misnamed("method", f"{_instance_name(module, owner)}.{last}")
    return None


def _instance_name(module: types.ModuleType, kind: type) -> str:
    names = (name for name, value in vars(module).items() if type(value) is kind)
    return next(names, kind.__name__.lower())


def _future_flags(tree: ast.Module) -> int:
    flags = 0
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                flags |= getattr(__future__, alias.name).compiler_flag
    return flags


def _function_names(module: types.ModuleType) -> tuple[str, ...]:
    return tuple(
        name
        for name, value in vars(module).items()
        if callable(value) and not isinstance(value, type) and not name.startswith("__")
        and getattr(value, "__module__", MAIN) in {MAIN, SPAWNED_MAIN}
    )  # fmt: skip


def _limit(which: int) -> int | None:
    soft, _ = resource.getrlimit(which)
    return None if soft == resource.RLIM_INFINITY else soft


def _folders() -> tuple[str, ...]:
    """Returns where datasets writes its cache, and the folder for temporary files."""
    config: Any = sys.modules.get("datasets.config")
    if config is not None:
        cache = str(config.HF_DATASETS_CACHE)
    else:
        home = os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME', '~/.cache')}/huggingface"
        cache = os.environ.get("HF_DATASETS_CACHE") or f"{home}/datasets"
    return os.path.expanduser(cache), tempfile.gettempdir()
