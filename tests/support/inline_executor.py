"""An executor that works in the test's process, for tests that are not about processes."""

from __future__ import annotations

import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Self

import pytest

from tokenmill.api import datasets, map_dataset
from tokenmill.executors import fan_out, local
from tokenmill.executors.local import LocalExecutor, this_machine
from tokenmill.executors.outcomes import DEFAULT_POLICY, Capacity, Done, Failed, RetryPolicy, Worker, error_record
from tokenmill.pipeline.bench import run as bench
from tokenmill.system import limits, status_page

MODULES = (local, fan_out, datasets, map_dataset, bench)
"""The modules that open executors."""


class InlineExecutor:
    """Runs functions right here. Functions, items and results are pickled, as on the way to a worker and back."""

    def __init__(self, preload: object = ()) -> None:
        self.workers = 1
        self.waiting = 0
        self.nodes: list[str] = []

    @property
    def room(self) -> Capacity:
        """The capacity of this machine."""
        return this_machine()

    def start(self, workers: int, *_: object, **_limits: object) -> Self:
        """Take note of the number of workers, which results mention."""
        self.workers = max(self.workers, workers)
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run(
        self, function: Callable[[Any], Any], items: Iterable[Any], policy: RetryPolicy = DEFAULT_POLICY
    ) -> Iterator[Done[Any, Any] | Failed[Any]]:
        """Work on one item after the other."""
        worker, received = Worker(os.getpid(), 1), _sent(function)
        for item in items:
            if policy.should_stop():
                return
            with _supervised():
                outcome = _outcome(received, item, worker)
            yield outcome


def _outcome(function: Callable[[Any], Any], item: Any, worker: Worker) -> Done[Any, Any] | Failed[Any]:
    started = time.monotonic()
    try:
        value = function(_sent(item))
        result = value.result() if isinstance(value, Future) else value
    except Exception as error:  # noqa: BLE001 - as in a worker
        record = error_record(limits.reached_by(error) or error)
        trace = "".join(traceback.format_exception(error))
        return Failed(item, *record, worker, trace, status_page.last_status())
    return Done(item, _sent(result), worker, time.monotonic() - started)


@contextmanager
def _supervised() -> Iterator[None]:
    """Let functions note what they begin on a page, as in a worker: an error is reported with the last note."""
    descriptor, page = status_page.new_status_page()
    os.close(descriptor)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(status_page, "_own", page)
        patch.setattr(status_page, "_thread", threading.get_ident())
        yield


def _sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


@contextmanager
def executors(kind: type[InlineExecutor | LocalExecutor]) -> Iterator[None]:
    """Let commands and functions that open an executor for this machine open one of this kind."""
    with pytest.MonkeyPatch.context() as patch:
        for module in MODULES:
            patch.setattr(module, "LocalExecutor", kind)
        yield
