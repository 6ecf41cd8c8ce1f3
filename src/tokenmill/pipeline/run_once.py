"""One after the other, where several machines work on one store: what only one of them should do."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tokenmill.storage import Folder

PLANNING = "planning"
FINISHING = "finishing"
FIRST_WAIT_SECONDS = 0.5
LAST_WAIT_SECONDS = 5.0


@contextmanager
def run_once(folder: Folder, name: str, is_done: Callable[[], bool], waiting: Callable[[], None]) -> Iterator[bool]:
    """Whether this process is to do what has that name; if not, it is done when the block begins.

    While another one is at it, this one waits, and says so; if the other one dies, it is this one's turn.
    """
    claim, seconds = folder.lease(name), FIRST_WAIT_SECONDS
    try:
        while not (done := is_done()) and not claim.take():
            waiting()
            time.sleep(random.uniform(0.5, 1.0) * seconds)  # noqa: S311 - so that not all of them ask at once
            seconds = min(2 * seconds, LAST_WAIT_SECONDS)
        yield not done and not is_done()  # it may have been done between the two questions
    finally:
        claim.release()
