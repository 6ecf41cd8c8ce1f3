"""No process is started while a script is loaded: where it would start one, loading ends, and the line is kept."""

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


class ProcessStarted(BaseException):
    """The script was about to start a process. Not an Exception, so that no script takes it for one of its own."""


class Doorkeeper:
    """Refuses to start processes; programs that are run by `subprocess` may pass. `line` is where the script tried."""

    def __init__(self, script: str, on_thread: Callable[[], None]) -> None:
        self.line: int | None = None
        self._script = script
        self._on_thread = on_thread
        self._active = False
        sys.addaudithook(self._audit)

    @contextlib.contextmanager
    def on_duty(self, with_multiprocess: bool) -> Iterator[None]:
        """Refuse within this block, for multiprocess too if it is likely to be used."""
        classes: list[Any] = [multiprocessing.process.BaseProcess]
        if with_multiprocess:
            with contextlib.suppress(ImportError):
                classes.append(importlib.import_module("multiprocess.process").BaseProcess)
        originals = [each.start for each in classes]
        self._active = True
        for each in classes:
            each.start = lambda _: self._refuse()
        try:
            yield
        finally:
            self._active = False
            for each, original in zip(classes, originals, strict=True):
                each.start = original

    def _audit(self, event: str, _: tuple[Any, ...]) -> None:
        if self._active and event in {"os.fork", "os.forkpty"}:
            self._refuse()

    def _refuse(self) -> None:
        self.line = self.line or line_in(self._script, sys._getframe())  # noqa: SLF001 - there is no other way up
        if threading.current_thread() is not threading.main_thread():
            self._on_thread()
            os._exit(0)
        raise ProcessStarted


def line_in(script: str, frame: FrameType | None) -> int | None:
    """The line of the script's top level from which a frame was reached, else its line in one of its functions."""
    line = None
    while frame is not None:
        if frame.f_code.co_filename == script:
            line = frame.f_lineno
        frame = frame.f_back
    return line
