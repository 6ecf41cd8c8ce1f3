"""Background threads that fetch what will be read next."""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from tokenmill.storage.folder import Folder
from tokenmill.system import machine
from tokenmill.system.storage_settings import bind

Args = ParamSpec("Args")
Item = TypeVar("Item")
Value = TypeVar("Value")

PREFETCH_FILES = 4  # files fetched whole in the background while one is used
THREADS = 32
BATCH_ITEMS = 64  # items that wait for the threads of a local folder, so that few results wait


class Threads(ThreadPoolExecutor):
    """Threads that run each function with the settings of storage of the thread that submitted it."""

    def submit(self, fn: Callable[Args, Value], /, *args: Args.args, **kwargs: Args.kwargs) -> Future[Value]:
        """Run a function in one of the threads."""
        return super().submit(bind(fn), *args, **kwargs)


@functools.lru_cache(maxsize=1)
def _pool(_process: int) -> Threads:
    return Threads(THREADS, thread_name_prefix="fetch")


def io_threads() -> Threads:
    """This process's threads for network requests and for writing files. A forked process makes its own."""
    return _pool(os.getpid())


def prefetch_map(
    folder: Folder, function: Callable[[Item], Value], items: Iterable[Item], ahead: int = PREFETCH_FILES
) -> Iterator[Value]:
    """Map a function that reads from a folder. If it is remote, the next `ahead` calls run in the background."""
    if not folder.is_remote:
        yield from map(function, items)
        return
    futures: deque[Future[Value]] = deque()
    for item in items:
        futures.append(io_threads().submit(function, item))
        if len(futures) > ahead:
            yield futures.popleft().result()
    while futures:
        yield futures.popleft().result()


def thread_map(
    folder: Folder, function: Callable[[Item], Value], items: Sequence[Item], ahead: int = PREFETCH_FILES
) -> Iterator[Value]:
    """Map a function that computes on what it reads. A local folder has a thread per core, a remote one prefetches.

    The function must spend its time outside the interpreter lock.
    """
    if folder.is_remote:
        yield from prefetch_map(folder, function, items, ahead)
        return
    with Threads(machine.cores()) as threads:
        for start in range(0, len(items), BATCH_ITEMS):
            yield from threads.map(function, items[start : start + BATCH_ITEMS])
