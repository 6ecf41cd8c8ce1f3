"""Which share of a run's units this process does first, if it is one of several that were started alike."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenmill.errors import UsageError
from tokenmill.system import slurm

if TYPE_CHECKING:
    import numpy.typing as npt

STRIPES = 64
MAX_IN_STRIPE = 64
"""A rank has so many stripes of the plan, if it is long enough; units side by side are of the same file."""

KUBERNETES = "JOB_COMPLETION_INDEX"
TORCH = ("RANK", "WORLD_SIZE")


@dataclass(frozen=True, slots=True)
class RankShare:
    """Rank i of n, counted from 0."""

    rank: int
    of: int

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.of}"

    def stripes(self, units: int) -> npt.NDArray[np.bool_]:
        """Which units are this rank's to begin with."""
        wide = max(1, min(MAX_IN_STRIPE, units // (STRIPES * self.of)))
        own: npt.NDArray[np.bool_] = np.arange(units) // wide % self.of == self.rank
        return own


def choose_rank_share(rank: int | None, of: int | None, *, look: bool = True) -> RankShare | None:
    """What was said, or what the environment says of Slurm, Kubernetes and torchrun; None if this process is alone.

    Whoever gives out work to a cluster is alone, whatever the environment says of the processes that it is one of: it
    is not to `look` there.
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
    """What to say if the environment tells only half of it."""
    if os.environ.get(KUBERNETES):
        return f"{KUBERNETES} is set: --of N, with the number of pods, lets them share the work"
    return None


def _from_environment(of: int | None) -> tuple[int | None, int | None]:
    index = os.environ.get(KUBERNETES, "")
    if of is not None and index.isdigit():
        return int(index), of
    torch = [os.environ.get(name, "") for name in TORCH]
    place = slurm.rank()
    if place is None and all(text.isdigit() for text in torch):
        place = int(torch[0]), int(torch[1])
    if place is None or of not in (None, place[1]):
        return None, of
    return place
