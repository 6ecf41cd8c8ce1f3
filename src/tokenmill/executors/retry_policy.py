"""How often an executor tries an item again whose worker died, and how it hands items out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


def never() -> bool:
    """Return False: the default of `RetryPolicy.should_stop`."""
    return False


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How items are handed out and retried.

    Attributes:
        max_crashes: Worker crashes after which an item is given up.
        max_kills: External kills and lost nodes after which an item is given up. They count apart from crashes,
            because only a crash can be the item's fault.
        workers: Workers used on each machine; None for all.
        prefetch: Items that a worker holds beyond the current one, so that the function can prefetch their data.
        should_stop: Polled while workers are busy. When it returns True, the run ends without an outcome for the
            items in progress.
    """

    max_crashes: int = 3
    max_kills: int = 3
    workers: int | None = None
    prefetch: int = 0
    should_stop: Callable[[], bool] = never


DEFAULT_POLICY = RetryPolicy()
