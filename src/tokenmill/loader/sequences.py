"""Single sequences of a loader by number: what samplers, Grain and map-style datasets take."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex

from tokenmill.errors import UsageError
from tokenmill.loader.batches import Batch
from tokenmill.loader.loader import Loader
from tokenmill.loader.state import encode_identity


class SequenceView:
    """The sequences of a loader's pass, in its order. `view[i]` has one row of each field, without the first axis.

    Samplers divide the sequences among ranks, so the loader must not have ranks of its own.
    """

    def __init__(self, loader: Loader) -> None:
        if loader.rank.world_size > 1:
            raise UsageError(
                f"the loader has ranks of its own: {loader.rank}",
                "Give rank=0 and world_size=1: the sampler divides the sequences among the ranks.",
            )
        if "cu_seqlens" in loader.options.fields:
            raise UsageError("cu_seqlens is of a whole batch", "Use document_ids or position_ids for single sequences.")
        if loader.skips:
            raise UsageError(
                "the recipe skips steps, and single sequences have none",
                "Remove skip from the recipe, or take batches: TokenDataLoader, or the loader itself.",
            )
        self._loader = loader
        self._length = loader.options.epochs * loader.sequences

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, number: SupportsIndex) -> Batch:
        index = operator.index(number)
        if not 0 <= index < self._length:
            raise IndexError(f"sequence {index:,} is out of range: there are {self._length:,}")
        return {name: values[0] for name, values in self._loader.reader.rows(index, index + 1).items()}

    def __getitems__(self, numbers: Sequence[int]) -> list[Batch]:
        """Several sequences: torch.utils.data asks for all of a batch at a time."""
        return [self[number] for number in numbers]

    def __repr__(self) -> str:
        """Equal for equal sequences: Grain compares it with that of a checkpoint."""
        return f"<SequenceView {encode_identity(self._loader.identity())} epochs={self._loader.options.epochs}>"
