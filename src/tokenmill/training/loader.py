"""The loader: batches of sequences from stores, each a pure function of its step; and single sequences by number.

A process takes a part of each global batch, by its rank.
"""

from __future__ import annotations

import operator
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import msgspec

from tokenmill.errors import UsageError
from tokenmill.humanize import count
from tokenmill.system import slurm, storage_settings
from tokenmill.training.batches import Batch
from tokenmill.training.reader import LoaderOptions, SequenceReader
from tokenmill.training.source import DIGEST_CHARACTERS
from tokenmill.training.state import check_state, encode_identity, state_of, versions_of


class Loader:
    """Batches of token sequences from one store or several, in an order that is computed and never stored.

    `loader[step]` is the batch of a step: always the same, whenever and wherever it is asked for. A `for` loop takes
    the batches from the cursor on and ends after `len(loader)` steps of a pass; the next loop continues with the next
    pass, which has another order. A batch is a dict of NumPy arrays. With several ranks it has the rows of this rank.
    A loader can be pickled: another process opens the same stores.

    `sequences` and `tokens` are those of an epoch, over all ranks. `tail_tokens` are in no epoch, because they fill no
    grain at the end of their store. `waste` has the padding of the packing `whole`, and the documents that it leaves
    out. `rank` is the rank of this process, and says where it comes from.

    `stores` are the directories of the stores: `tokenmill.open(loader.stores)[number]` is a document of `document_ids`.
    `sources` are the names of the sources, by their numbers in `source_ids`: those of a recipe, else the stores.
    `stages` is the number of stages: 1, unless a recipe has more. `skips` says whether a `for` loop leaves out steps,
    which only a recipe does.
    """

    def __init__(self, options: LoaderOptions, rank: LoaderRank, cursor: int = 0) -> None:
        rank.check(options.batch_sequences)
        self.options = options
        self.rank = rank
        self._settings = storage_settings.current()
        self.reader = SequenceReader(options)
        self.stores, self.sources = list(options.stores), self.reader.names
        self.stages, self.skips = 1, False
        self.sequences = sum(self.reader.mixture.counts)
        self.tokens = sum(source.tokens for source in self.reader.sources)
        self.tail_tokens = sum(source.tail_tokens for source in self.reader.sources)
        self.waste = self.reader.waste
        self._cursor = cursor

    def __len__(self) -> int:
        """The number of batches in a pass: `epochs` epochs. A rest that fills no batch begins the next pass."""
        return max(1, self.options.epochs * self.sequences // self.options.batch_sequences)

    def __getitem__(self, step: SupportsIndex) -> Batch:
        index = operator.index(step)
        if index < 0:
            raise IndexError(f"step {index:,} is out of range: steps are counted from 0")
        return next(self.batches(index * self.options.batch_sequences, (index + 1) * self.options.batch_sequences))

    def __iter__(self) -> Iterator[Batch]:
        for batch in self.batches(self._cursor, self.pass_end(self._cursor)):
            self._cursor = self.advance(self._cursor, 1)  # before the batch is given out: a state in the loop counts it
            yield batch

    def __repr__(self) -> str:
        stores = ", ".join(self.options.stores)
        sequences = f"{count(self.sequences, 'sequence')} of {self.options.sequence_tokens:,} tokens"
        return f"<Loader {stores}: {sequences}, {count(len(self), 'step')}, {self.rank}>"

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.options, self.rank, self._cursor)
        return storage_settings.run, (self._settings, restored, type(self), arguments, self.identity())

    def state_dict(self) -> dict[str, Any]:
        """The state: the sequences given out over all ranks, and the choices that decided which. Equal on all ranks.

        `stores` has the version of each store: how many erasures it has had, and the hash of the last one.
        """
        return state_of(self._cursor, encode_identity(self.identity()), self.versions())

    def versions(self) -> dict[str, list[Any]]:
        """The versions of the stores, by their identities, as plain lists."""
        return {identity: [*msgspec.structs.astuple(one)] for identity, one in self.reader.versions().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where a state was taken. The number of ranks, of workers and of sequences in a batch may differ.

        Raises UsageError if this loader would have given out other sequences until then, and says what differs. Raises
        CorruptStore if a store is an older copy than the one of the state, or another store.
        """
        self._cursor = self.check_state(state)

    def check_state(self, state: Any) -> int:
        """The sequences of a state. Raises UsageError if this loader would have given out other ones."""
        sequences = check_state(state, self.identity())
        self.reader.require_versions(versions_of(state))
        return sequences

    def identity(self) -> dict[str, str]:
        """The choices that decide which sequence has which number, by the names of the parameters."""
        options = self.options
        return {
            "stores": ",".join(source.order.store[:DIGEST_CHARACTERS] for source in self.reader.sources),
            "seed": str(options.seed),
            "val": options.val or "none",
            "split": options.split if options.val else "all",
            "shuffle": options.shuffle,
            "grain": str(options.grain),
            "sequence_tokens": str(options.sequence_tokens),
            "packing": options.packing,
        }

    def pass_end(self, sequence: int) -> int:
        """The sequence at which the pass ends that has this sequence."""
        length = len(self) * self.options.batch_sequences
        return (sequence // length + 1) * length

    def after_pass(self, start: int) -> int:
        """The first sequence after the batches from `start` to the end of its pass.

        After a resume with another number of sequences in a batch, the last batch may end after the pass.
        """
        end = self.pass_end(start)
        return end + (start - end) % self.options.batch_sequences

    def pass_start(self, number: int) -> int:
        """The sequence with which a pass begins, by the number of the pass from 0."""
        return number * len(self) * self.options.batch_sequences

    def advance(self, sequence: int, batches: int) -> int:
        """The first sequence of a later batch: so many batches after the batch that begins with `sequence`."""
        return sequence + batches * self.options.batch_sequences

    def batches(self, first: int, last: int, batches_apart: int = 1) -> Iterator[Batch]:
        """This rank's rows of the global batches that begin with a sequence in [first, last).

        With `batches_apart` only every so many batches, as a worker takes them.
        """
        size = self.options.batch_sequences
        low, high = self.rank.rows(size)
        starts = range(first, last, batches_apart * size)
        return self.reader.batches((start + low, start + high) for start in starts)

    def locate(self, step: int, row: int, position: int) -> tuple[str, int]:
        """The store of a token of a global batch, and the position of the token in the store.

        Args:
            step: The step of the batch, from 0.
            row: The row of the batch, over all ranks, from 0.
            position: The position in the row, from 0.
        """
        options = self.options
        limits = (("step", step, None), ("row", row, options.batch_sequences))
        for name, value, limit in (*limits, ("position", position, options.sequence_tokens)):
            if value < 0 or (limit is not None and value >= limit):
                raise UsageError(f"there is no {name} {value:,}", *([f"They are 0 to {limit - 1:,}."] if limit else []))
        return self.reader.locate(step * options.batch_sequences + row, position)


def restored(kind: type[Loader], arguments: tuple[Any, ...], identity: dict[str, str]) -> Loader:
    """A loader that was pickled. Raises UsageError if its stores were replaced since."""
    loader = kind(*arguments)
    now = loader.identity()
    changed = [name for name, value in identity.items() if now.get(name) != value]
    if changed:
        raise UsageError(
            "the data of a pickled loader was replaced",
            f"changed      {', '.join(changed)}",
            f"loader       {loader!r}",
            "Make a new loader.",
        )
    return loader


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
