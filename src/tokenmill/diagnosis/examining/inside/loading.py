"""Loads a script in this process, statement by statement, as the main process or a spawned child would.

A probe process keeps a script from starting processes while it is loaded, and from using the network.
"""

from __future__ import annotations

import ast
import contextlib
import errno
import functools
import importlib
import ipaddress
import multiprocessing.process
import os
import resource
import socket
import sys
import time
import traceback
import types
from collections.abc import Iterator
from typing import Any

from tokenmill.diagnosis.examining.answers import Called, Loaded, ProbeRequest, Raised, describe_exception
from tokenmill.system import machine

PROXIES = {"http_proxy", "https_proxy", "all_proxy"}
MAIN = "__main__"
SPAWNED_MAIN = "__mp_main__"


class ProcessStartBlocked(BaseException):
    """The script was about to start a process. A BaseException, so that scripts do not catch it."""


@contextlib.contextmanager
def blocked_starts(with_multiprocess: bool) -> Iterator[None]:
    """Blocks the start of processes, except of programs by `subprocess`; by multiprocess too, if it may be used."""
    classes: list[Any] = [multiprocessing.process.BaseProcess]
    if with_multiprocess:
        with contextlib.suppress(ImportError):
            classes.append(importlib.import_module("multiprocess.process").BaseProcess)
    originals = [process_class.start for process_class in classes]

    def block(_: object) -> None:
        raise ProcessStartBlocked

    for process_class in classes:
        process_class.start = block
    try:
        yield
    finally:
        for process_class, original in zip(classes, originals, strict=True):
            process_class.start = original


class NetworkBlock:
    """Blocks the network from its creation on, except to this machine.

    `hosts` were requested; `proxy` was set in the environment.
    """

    def __init__(self) -> None:
        self.hosts: list[str] = []
        self.proxy: str | None = None
        self.remove_proxies()
        sys.addaudithook(self._audit)

    def remove_proxies(self) -> None:
        """Removes proxies from the environment, so that hosts behind them are requested by name."""
        for name in [name for name in os.environ if name.lower() in PROXIES]:
            self.proxy = os.environ.pop(name) or self.proxy

    def failure(self, raised: tuple[Raised, ...], stage: str = "") -> Called:
        """Returns the answer for a function that could not be called, or an exception before that, at some stage."""
        return Called(None, raised, tuple(self.hosts), self.proxy, stage)

    def _audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo":
            host, port = arguments[:2]
        elif event == "socket.connect" and isinstance(arguments[1], tuple):
            host, port = arguments[1][:2]
        else:
            return
        name = host.decode(errors="replace") if isinstance(host, bytes) else str(host or "localhost")
        if _is_local(name):
            return
        address = f"{name}:{port}" if port else name
        if address not in self.hosts:
            self.hosts.append(address)
        message = "tokenmill doctor blocks the network during the examination"
        if event == "socket.getaddrinfo":
            raise socket.gaierror(socket.EAI_AGAIN, message)
        raise OSError(errno.ENETUNREACH, message)


def _is_local(name: str) -> bool:
    try:
        address = ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return name == "localhost"
    return address.is_loopback or address.is_unspecified


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
