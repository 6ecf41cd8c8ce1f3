"""Fork servers that stay for the next call of a test process.

Each call of the API starts a fork server, which loads its libraries in half a second of processor time. In thousands of
tests that is most of the time. A kept fork server is a real one; its workers end with the call that started them.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import pytest

from tokenmill.executors import local
from tokenmill.executors.forkserver import ForkServer
from tokenmill.executors.forkserver_main import Preload

# Fork servers that wait, at most. Each holds the memory of its libraries.
MAX_IDLE = 8


class KeptForkServer(ForkServer):
    """A fork server that waits for another call with the same surroundings when it is closed."""

    _idle: ClassVar[dict[Any, Any]] = {}
    _running: set[int]

    def __new__(cls, preload: Preload) -> Self:
        """Return a fork server that waits, or a new one."""
        kept = cls._idle.pop(_surroundings(preload), None)
        if kept is not None and kept.alive:
            return kept
        if kept is not None:
            kept.end()
        return super().__new__(cls)

    def __init__(self, preload: Preload) -> None:
        self._key = _surroundings(preload)
        if not hasattr(self, "_running"):
            self._running = set()
            super().__init__(preload)

    def start_worker(self, work: int, output: int, status: int) -> int:
        """Request a worker, and remember the request."""
        number = super().start_worker(work, output, status)
        self._running.add(number)
        return number

    def end_of(self, pid: int) -> tuple[int, int]:
        """Wait for the end of a worker, and forget it."""
        self._running -= {number for number in self._running if self._pids.get(number) == pid}
        return super().end_of(pid)

    def close(self) -> None:
        """End all workers, and wait for another call."""
        try:
            for number in list(self._running):
                pid = self.pid_of(number)
                if pid is not None:
                    self.kill(pid)
                    self.end_of(pid)
        except OSError:  # a worker was never started
            self.end()
            return
        if not self.alive or self._key in self._idle:
            self.end()
            return
        self._idle[self._key] = self
        while len(self._idle) > MAX_IDLE:
            self._idle.pop(next(iter(self._idle))).end()

    def end(self) -> None:
        """End the fork server."""
        super().close()

    @classmethod
    def end_idle(cls) -> None:
        """End all fork servers that wait."""
        while cls._idle:
            cls._idle.popitem()[1].end()


def _surroundings(preload: Preload) -> Any:
    """All that a fork server takes from the process that starts it."""
    limits = tuple(resource.getrlimit(kind) for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_AS))
    variables = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    environment = frozenset(variables.items())
    return os.getpid(), threading.get_ident(), Path.cwd(), tuple(sys.path), limits, environment, preload


@contextmanager
def kept_forkservers() -> Iterator[None]:
    """Keep the fork servers of this process until the end of the context."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "ForkServer", KeptForkServer)
        yield
    KeptForkServer.end_idle()
