"""Background threads that fetch what will be read next."""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from tokenmill.storage.folder import Folder

Item = TypeVar("Item")
Value = TypeVar("Value")

PREFETCH_FILES = 4  # files fetched whole in the background while one is used
THREADS = 32


@functools.lru_cache(maxsize=1)
def _pool(_process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="fetch")


def io_threads() -> ThreadPoolExecutor:
    """This process's threads for network requests. A forked process makes its own."""
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
