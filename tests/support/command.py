"""The command line inside the test's process: what `python -m tokenmill` does, without the start of a process.

A cold command takes two seconds of a core, mostly to load libraries. `run` calls the same `main` with the same streams,
exit codes and signal handlers, and undoes what the end of a process would undo. Tests of kills, signals, memory,
terminals and start-up start processes: `process` runs a command in one.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from typing import IO, NoReturn

import pytest

from tokenmill import cli

STDOUT, STDERR = 1, 2


def run(*arguments: object, code: int | None = 0, **environment: str | None) -> subprocess.CompletedProcess[str]:
    """Run a command, whose exit code has to be `code` if it is not None. A variable that is None is removed."""
    words = [str(argument) for argument in arguments]
    with tempfile.TemporaryFile() as stdout, tempfile.TemporaryFile() as stderr:
        with _redirected(STDOUT, stdout), _redirected(STDERR, stderr), _as_in_a_process(words, environment):
            ended = _exit_code()
            sys.stdout.flush()
            sys.stderr.flush()
        for file in (stdout, stderr):
            file.seek(0)
        done = subprocess.CompletedProcess(words, ended, stdout.read().decode(), stderr.read().decode())
    assert code is None or done.returncode == code, done.stderr
    assert code is None or "Traceback" not in done.stderr
    return done


def process(*arguments: object, code: int | None = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own, whose exit code has to be `code` if it is not None."""
    done = subprocess.run(
        [sys.executable, "-m", "tokenmill", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, **environment},
        check=False,
    )
    assert code is None or done.returncode == code, done.stderr
    assert code is None or "Traceback" not in done.stderr
    return done


def _exit_code() -> int:
    try:
        cli.main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0
    raise AssertionError("the command returned without an exit code")


def _exit(code: int) -> NoReturn:
    raise SystemExit(code)


@contextlib.contextmanager
def _as_in_a_process(words: list[str], environment: dict[str, str | None]) -> Iterator[None]:
    """Set up what a new process of the command would find, and restore what `main` changes."""
    handlers = {number: signal.getsignal(number) for number in cli.INTERRUPTS}
    finders, variables = list(sys.meta_path), dict(os.environ)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tokenmill", *words])
        patch.setattr(sys.modules["__main__"], "__package__", None)  # else click names the command by it
        for name, descriptor, errors in (("stdout", STDOUT, "strict"), ("stderr", STDERR, "backslashreplace")):
            patch.setattr(sys, name, io.TextIOWrapper(io.FileIO(descriptor, "wb", closefd=False), "utf-8", errors))
        patch.setattr(os, "_exit", _exit)
        patch.setattr(tempfile, "tempdir", None)  # TMPDIR is read again
        for name, value in environment.items():
            patch.delenv(name, raising=False) if value is None else patch.setenv(name, value)
        try:
            with _hub_settings():
                yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
            # Libraries may have added finders, too, such as importlib_metadata, which takes the place of Python's own.
            sys.meta_path[:] = [each for each in sys.meta_path if each in finders or not _is_ours(each)]
            for name in os.environ.keys() - variables.keys() - environment.keys():
                del os.environ[name]
            os.environ.update({name: value for name, value in variables.items() if name not in environment})


def _is_ours(finder: object) -> bool:
    return type(finder).__module__.startswith("tokenmill")


@contextlib.contextmanager
def _hub_settings() -> Iterator[None]:
    """Let huggingface_hub read its environment, as it does when a new process imports it."""
    constants = importlib.import_module("huggingface_hub.constants")
    before = dict(vars(constants))
    importlib.reload(constants)
    try:
        yield
    finally:
        vars(constants).update(before)


@contextlib.contextmanager
def _redirected(descriptor: int, file: IO[bytes]) -> Iterator[None]:
    """Write to a file what is written to a descriptor, also by native code and by processes that inherit it."""
    before = os.dup(descriptor)
    os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        os.dup2(before, descriptor)
        os.close(before)
