"""Which units of a run this process does first, if it is one of several ranks."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenmill.errors import UsageError
from tokenmill.system import slurm

if TYPE_CHECKING:
    import numpy.typing as npt

# How many stripes of consecutive units a rank has, if the plan is long enough. Consecutive units share a file.
STRIPES = 64

# How many units a stripe has at most.
MAX_UNITS_IN_STRIPE = 64

# The environment variables that hold the rank, and the number of ranks.
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
        """For each unit, whether this rank does it first."""
        width = max(1, min(MAX_UNITS_IN_STRIPE, units // (STRIPES * self.of)))
        own: npt.NDArray[np.bool_] = np.arange(units) // width % self.of == self.rank
        return own


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
