"""Which items this process does first, if it is one of several ranks that share work: units of a run, or shards."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenmill.errors import UsageError
from tokenmill.system import slurm

if TYPE_CHECKING:
    import numpy.typing as npt

# How many stripes of consecutive items a rank has, if there are enough. Consecutive units share a file.
STRIPES = 64

# How many items a stripe has at most.
MAX_ITEMS_IN_STRIPE = 64

# How often a rank lists what is done while it does its own items, and while it does those of others. Hundreds of ranks
# may list a million items.
OWN_LISTING_SECONDS = 300.0
SHARED_LISTING_SECONDS = 1.0

# At most one part in this many of the time is spent on listing.
LISTING_TIME_DIVISOR = 20

# The environment variables that hold the rank, and the number of ranks.
KUBERNETES = "JOB_COMPLETION_INDEX"
TORCH = ("RANK", "WORLD_SIZE")


class DoneListing:
    """A function that lists which items are done, and whether it is time to call it again."""

    def __init__(self, function: Callable[[], npt.NDArray[np.bool_]]) -> None:
        self._function = function
        self._listed = time.monotonic()
        self._seconds = 0.0

    def __call__(self) -> npt.NDArray[np.bool_]:
        """List the items."""
        started = time.monotonic()
        is_done = self._function()
        self._listed = time.monotonic()
        self._seconds = self._listed - started
        return is_done

    def is_due(self, interval: float) -> bool:
        """Whether the last listing is `interval` seconds ago, or longer if listing is slow."""
        return time.monotonic() - self._listed > max(interval, LISTING_TIME_DIVISOR * self._seconds)


@dataclass(frozen=True, slots=True)
class RankShare:
    """Rank i of n, counted from 0."""

    rank: int
    of: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.of}"

    def stripes(self, count: int) -> npt.NDArray[np.bool_]:
        """For each of `count` items, whether this rank does it first."""
        width = max(1, min(MAX_ITEMS_IN_STRIPE, count // (STRIPES * self.of)))
        own: npt.NDArray[np.bool_] = np.arange(count) // width % self.of == self.rank
        return own

    def order(
        self,
        items: npt.NDArray[np.int64],
        is_done: npt.NDArray[np.bool_],
        list_done: Callable[[], npt.NDArray[np.bool_]],
        on_skip: Callable[[int], None] = lambda _: None,
    ) -> Iterator[int]:
        """Yield the items of this rank, then those of other ranks in random order: a slow rank does not delay the end.

        `is_done` says which of all items were done so far, and `list_done` lists them. `on_skip` is called for an item
        that is done by then.
        """
        listing = DoneListing(list_done)
        is_own = self.stripes(len(is_done))[items]

        def not_done(numbers: npt.NDArray[np.int64], interval: float) -> Iterator[int]:
            nonlocal is_done
            for item in map(int, numbers):
                if listing.is_due(interval):
                    is_done = listing()
                if is_done[item]:
                    on_skip(item)
                else:
                    yield item

        yield from not_done(items[is_own], OWN_LISTING_SECONDS)
        is_done = listing()
        yield from not_done(np.random.default_rng().permutation(items[~is_own]), SHARED_LISTING_SECONDS)


def choose_rank_share(rank: int | None, of: int | None, *, look: bool = True) -> RankShare | None:
    """The rank of the options, or of the environment of Slurm, Kubernetes or torchrun; None for a single process.

    Pass `look=False` for a Ray driver: SLURM_PROCID describes the job step, not a rank of this run.
    """
    if rank is None and look:
        rank, of = _from_environment(of)
    if rank is None and of is None:
        return None
    if rank is None or of is None:
        missing = "--of: how many there are" if of is None else "--rank: which one this is, counted from 0"
        raise UsageError(f"{'--rank' if of is None else '--of'} needs {missing}")
    if not 0 <= rank < of:
        raise UsageError(f"--rank {rank} --of {of}: ranks are counted from 0 to {of - 1}")
    return RankShare(rank, of) if of > 1 else None


def advice() -> str | None:
    """A note if the environment has a rank, but not the number of ranks."""
    if os.environ.get(KUBERNETES):
        return f"{KUBERNETES} is set: --of N, with the number of pods, lets them share the work"
    return None


def _from_environment(of: int | None) -> tuple[int | None, int | None]:
    index = os.environ.get(KUBERNETES, "")
    if of is not None and index.isdigit():
        return int(index), of
    torch = [os.environ.get(name, "") for name in TORCH]
    position = slurm.rank()
    if position is None and all(text.isdigit() for text in torch):
        position = int(torch[0]), int(torch[1])
    if position is None or of not in (None, position[1]):
        return None, of
    return position
