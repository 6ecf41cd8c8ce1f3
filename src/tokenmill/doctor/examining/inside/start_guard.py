"""Keeps a script from starting processes while it is loaded: loading ends there, and the line is recorded."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing.process
import os
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any


class ProcessStartBlocked(BaseException):
    """The script was about to start a process. A BaseException, so that scripts do not catch it."""


class StartGuard:
    """Blocks process starts, except of programs by `subprocess`. `line` is where the script tried."""

    def __init__(self, script: str, on_thread: Callable[[], None]) -> None:
        self.line: int | None = None
        self._script = script
        self._on_thread = on_thread
        self._active = False
        sys.addaudithook(self._audit)

    @contextlib.contextmanager
    def active(self, with_multiprocess: bool) -> Iterator[None]:
        """Blocks starts within a `with` block, also for multiprocess if it is likely to be used."""
        classes: list[Any] = [multiprocessing.process.BaseProcess]
        if with_multiprocess:
            with contextlib.suppress(ImportError):
                classes.append(importlib.import_module("multiprocess.process").BaseProcess)
        originals = [process_class.start for process_class in classes]
        self._active = True
        for process_class in classes:
            process_class.start = lambda _: self._block()
        try:
            yield
        finally:
            self._active = False
            for process_class, original in zip(classes, originals, strict=True):
                process_class.start = original

    def _audit(self, event: str, _: tuple[Any, ...]) -> None:
        if self._active and event in {"os.fork", "os.forkpty"}:
            self._block()

    def _block(self) -> None:
        self.line = self.line or line_in(self._script, sys._getframe())  # noqa: SLF001 - finds the script's line
        if threading.current_thread() is not threading.main_thread():
            self._on_thread()
            os._exit(0)
        raise ProcessStartBlocked


def line_in(script: str, frame: FrameType | None) -> int | None:
    """Returns the script's outermost line in a stack: of its top level, else of one of its functions."""
    line = None
    while frame is not None:
        if frame.f_code.co_filename == script:
            line = frame.f_lineno
        frame = frame.f_back
    return line
