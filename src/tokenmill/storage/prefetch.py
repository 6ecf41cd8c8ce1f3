"""Threads that fetch what will be read next."""

from __future__ import annotations

import functools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from tokenmill.storage.folder import Folder


Item = TypeVar("Item")


Value = TypeVar("Value")


PREFETCH_FILES = 4
"""How many files are on their way, to be read whole, while one is read."""


THREADS = 32


@functools.lru_cache(maxsize=1)
def _pool(_process: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="fetch")


def io_threads() -> ThreadPoolExecutor:
    """The threads of this process that wait for a network."""
    return _pool(os.getpid())


def prefetch_map(
    folder: Folder, function: Callable[[Item], Value], items: Iterable[Item], ahead: int = PREFETCH_FILES
) -> Iterator[Value]:
    """What a function that reads from a folder gives for each item; behind a network, the next are on their way."""
    if not folder.is_remote:
        yield from map(function, items)
        return
    coming: deque[Future[Value]] = deque()
    for item in items:
        coming.append(io_threads().submit(function, item))
        if len(coming) > ahead:
            yield coming.popleft().result()
    while coming:
        yield coming.popleft().result()
