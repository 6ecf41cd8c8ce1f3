"""Loads a script in this process, statement by statement, as its own process or as a spawned child would."""

from __future__ import annotations
import __future__

import ast
import contextlib
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
from tokenmill.doctor.examining.answers import Loaded, ProbeRequest, Raised
from tokenmill.doctor.examining.inside.naming import misnamed
from tokenmill.doctor.examining.inside.raising import raised
from tokenmill.doctor.examining.inside.starting import Doorkeeper, ProcessStarted, line_in
from tokenmill.system import machine

MAIN = "__main__"
SPAWNED_MAIN = "__mp_main__"
DILL_PACKAGES = ("datasets", "multiprocess", "pathos")


class TooLate(BaseException):
    """Loading has taken too long. Not an Exception, so that no script takes it for one of its own."""


class Loading:
    """A script that is being loaded: its module, and what each of its statements took."""

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

    def run(self, name: str, doorkeeper: Doorkeeper) -> None:
        """Run it as the module of that name, up to what starts a process, raises or exits."""
        self._set_stage(name)
        wanted = (self.request.function.partition(".")[0], *self._initializer_names())
        statements = self.tree.body if name == SPAWNED_MAIN else guard.without_start(self.tree, wanted)
        flags = _future_flags(self.tree)
        uses_dill = any(package.encode() in self.source for package in DILL_PACKAGES)
        with doorkeeper.on_duty(uses_dill), self._time_limit():
            try:
                for statement in statements:
                    self._run_one(statement, flags)
            except (ProcessStarted, TooLate):
                self.stopped = True
            except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever the script raises is the answer
                self.raised = raised(error, self.request.script)

    def function(self) -> Any:
        """The function that is examined."""
        value: Any = self.module
        for name in self.request.function.split("."):
            value = getattr(value, name)
        return value

    @property
    def exists(self) -> bool:
        """Whether the script came as far as the function."""
        try:
            self.function()
        except AttributeError:
            return False
        return True

    def make_ready(self) -> None:
        """Run what the script's pool runs first in each worker."""
        if self.request.initializer is not None:
            call = f"({self.request.initializer})(*({self.request.initargs or '()'}))"
            exec(compile(call, "<initializer>", "exec"), self.module.__dict__)  # noqa: S102 - the user's own words

    def answer(self, seconds: float, line: int | None, hosts: tuple[str, ...]) -> Loaded:
        """What loading showed."""
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
            names=_functions(self.module),
            threads=machine.threads(),
            held_bytes=machine.resident_bytes(),
            address_space=_limit(resource.RLIMIT_AS),
            open_files=_limit(resource.RLIMIT_NOFILE),
            processes=_limit(resource.RLIMIT_NPROC),
            folders=_folders(),
            hosts=hosts,
            misnamed=misnamed(self.module, self.request.function) if exists else None,
        )

    def _set_stage(self, name: str) -> None:
        self.module.__dict__.update(__name__=name, __file__=self.request.script, __builtins__=__builtins__)
        sys.modules[MAIN] = self.module
        if name == SPAWNED_MAIN:
            sys.modules[SPAWNED_MAIN] = self.module
        sys.argv = [self.request.script]
        sys.path.insert(0, os.path.dirname(self.request.script))

    @contextlib.contextmanager
    def _time_limit(self) -> Iterator[None]:
        def ring(_: int, frame: types.FrameType | None) -> None:
            self.late_line = line_in(self.request.script, frame) or 0
            raise TooLate

        before = signal.signal(signal.SIGALRM, ring)
        signal.setitimer(signal.ITIMER_REAL, self.request.load_seconds)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def _run_one(self, statement: ast.stmt, flags: int) -> None:
        code = compile(ast.Module([statement], []), self.request.script, "exec", flags=flags, dont_inherit=True)
        started, held = time.perf_counter(), machine.resident_bytes()
        exec(code, self.module.__dict__)  # noqa: S102 - the user asked to have this script run
        self.costs.append((time.perf_counter() - started, machine.resident_bytes() - held, statement))

    def _initializer_names(self) -> list[str]:
        text = f"({self.request.initializer}, {self.request.initargs})"
        return [node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)]


def load(
    request: ProbeRequest, name: str, hosts: Callable[[], tuple[str, ...]], report: Callable[[Loaded], None]
) -> Loading:
    """Load the script under that name, and report what this showed."""
    loading = Loading(request)
    started = time.perf_counter()

    def finish() -> None:
        report(loading.answer(time.perf_counter() - started, doorkeeper.line, hosts()))

    doorkeeper = Doorkeeper(request.script, on_thread=finish)
    loading.run(name, doorkeeper)
    finish()
    return loading


def _future_flags(tree: ast.Module) -> int:
    flags = 0
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module == "__future__":
            for alias in node.names:
                flags |= getattr(__future__, alias.name).compiler_flag
    return flags


def _functions(module: types.ModuleType) -> tuple[str, ...]:
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
    """Where datasets writes its cache, and where temporary files go."""
    config: Any = sys.modules.get("datasets.config")
    if config is not None:
        cache = str(config.HF_DATASETS_CACHE)
    else:
        home = os.environ.get("HF_HOME") or f"{os.environ.get('XDG_CACHE_HOME', '~/.cache')}/huggingface"
        cache = os.environ.get("HF_DATASETS_CACHE") or f"{home}/datasets"
    return os.path.expanduser(cache), tempfile.gettempdir()
