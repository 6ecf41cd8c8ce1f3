"""Which part of each global batch this process takes."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from tokenmill.errors import UsageError
from tokenmill.humanize import count
from tokenmill.system import slurm


@dataclass(frozen=True, slots=True)
class LoaderRank:
    """Rank `rank` of `world_size`, counted from 0. `origin` tells where the numbers come from."""

    rank: int
    world_size: int
    origin: str

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size} ({self.origin})"

    def check(self, batch_sequences: int) -> None:
        """Raise UsageError if a global batch cannot be divided equally."""
        if batch_sequences % self.world_size:
            raise UsageError(
                f"a batch of {count(batch_sequences, 'sequence')} cannot be divided among {self.world_size} ranks",
                f"ranks        from {self.origin}",
                f"Give batch_sequences as a multiple of {self.world_size}: it counts the sequences of all ranks.",
            )

    def rows(self, batch_sequences: int) -> tuple[int, int]:
        """The rows [first, last) of a global batch that this rank takes: equally many for each rank."""
        own = batch_sequences // self.world_size
        return self.rank * own, (self.rank + 1) * own


def find_rank(rank: int | None, world_size: int | None) -> LoaderRank:
    """The rank of the arguments, else of torch.distributed, of RANK and WORLD_SIZE, or of a Slurm step; else 0 of 1.

    Ranks that read the same data, such as those of tensor parallelism, have to be given one rank by the caller.
    """
    if (rank is None) != (world_size is None):
        raise UsageError("rank and world_size belong together", "Give both, or neither.")
    if rank is not None and world_size is not None:
        return _checked(LoaderRank(rank, world_size, "given"))
    return _checked(_of_torch() or _of_environment() or _of_slurm() or LoaderRank(0, 1, "a single process"))


def _of_torch() -> LoaderRank | None:
    """The rank of an initialized process group. torch is not imported for it."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return LoaderRank(distributed.get_rank(), distributed.get_world_size(), "torch.distributed")


def _of_environment() -> LoaderRank | None:
    rank, world_size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    if not rank.isdigit() or not world_size.isdigit():
        return None
    return LoaderRank(int(rank), int(world_size), "RANK and WORLD_SIZE")


def _of_slurm() -> LoaderRank | None:
    """The rank in a Slurm step. Tasks of a job array are runs of their own, so they are not counted."""
    rank, world_size = slurm.step_rank()
    return LoaderRank(rank, world_size, "Slurm") if world_size > 1 else None


def _checked(rank: LoaderRank) -> LoaderRank:
    if not 0 <= rank.rank < rank.world_size:
        raise UsageError(
            f"there is no rank {rank.rank} of {rank.world_size}", f"They are from {rank.origin}; ranks begin at 0."
        )
    return rank
