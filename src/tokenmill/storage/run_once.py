"""Work that only one of several processes should do: planning a store or an export, writing its manifest."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tokenmill.storage import Locks

PLANNING = "planning"
FINISHING = "finishing"
EXPORTING = "exporting"

# The wait between two attempts doubles from the first value up to the second.
FIRST_WAIT_SECONDS = 0.5
LAST_WAIT_SECONDS = 5.0


@contextmanager
def run_once(locks: Locks, name: str, is_done: Callable[[], bool], waiting: Callable[[], None]) -> Iterator[bool]:
    """Yield True if this process should do the work `name`, and False if another process already did it.

    While another process holds the lease, this one calls `waiting` and waits. If that process dies, this one goes on.
    """
    lease, seconds = locks.lease(name), FIRST_WAIT_SECONDS
    try:
        while not (done := is_done()) and not lease.take():
            waiting()
            time.sleep(random.uniform(0.5, 1.0) * seconds)  # noqa: S311 - spreads the attempts of many processes
            seconds = min(2 * seconds, LAST_WAIT_SECONDS)
        yield not done and not is_done()  # another process may have finished before the lease was taken
    finally:
        lease.release()
