"""The loader of a recipe: stages, a cursor for each source, skips, and a future that may change."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import Any, SupportsIndex

from tokenmill.errors import UsageError
from tokenmill.humanize import count
from tokenmill.storage.digest import canonical, digest_of
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.system import storage_settings
from tokenmill.training.batches import Batch
from tokenmill.training.changes import check_past
from tokenmill.training.loader import Loader, LoaderRank, restored
from tokenmill.training.reader import LoaderOptions
from tokenmill.training.recipe import Recipe
from tokenmill.training.recipe_reader import RecipeReader
from tokenmill.training.stages import RecipePlan
from tokenmill.training.state import sequences_of, state_of, versions_of


class RecipeLoader(Loader):
    """Batches of a recipe. Steps and sequences are counted through all stages, with the steps that are skipped.

    `loader[step]` is the batch of a step of the recipe, also of one that a `for` loop skips. A `for` loop ends with the
    last stage. `options` has the sequence length and the batch size of the first stage. `plan` is the recipe in whole
    sequences, and `timeline` knows its steps.
    """

    reader: RecipeReader

    def __init__(self, recipe: Recipe, options: LoaderOptions, rank: LoaderRank, cursor: int = 0) -> None:
        for stage in recipe.stages:
            rank.check(stage.batch_sequences)
        self.recipe = recipe
        self.options = options
        self.rank = rank
        self._settings = storage_settings.current()
        self.reader = RecipeReader(recipe, options)
        self.plan, self.timeline = self.reader.plan, self.reader.timeline
        self.stores, self.sources = list(options.stores), self.reader.names
        self.stages = len(self.plan.stages)
        self.skips = self.timeline.delivered_steps < self.timeline.steps
        self.sequences = self.timeline.sequences
        self.tokens = sum(stage.sequences * stage.sequence_tokens for stage in self.plan.stages)
        self.tail_tokens = sum(source.tail_tokens for source in self.reader.merged.values())
        self.waste = self.reader.waste
        self._cursor = cursor

    def __len__(self) -> int:
        """The number of batches in all stages, without those that are skipped."""
        return self.timeline.delivered_steps

    def __getitem__(self, step: SupportsIndex) -> Batch:
        index = operator.index(step)
        if not 0 <= index < self.timeline.steps:
            raise IndexError(f"step {index:,} is out of range: the recipe has {count(self.timeline.steps, 'step')}")
        return self.reader.rows(*self._rows(self.timeline.sequence_of(index)))

    def __repr__(self) -> str:
        stages = count(len(self.plan.stages), "stage")
        return f"<RecipeLoader {', '.join(self.plan.sources)}: {stages}, {count(len(self), 'step')}, {self.rank}>"

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.recipe, self.options, self.rank, self._cursor)
        return storage_settings.run, (self._settings, restored, type(self), arguments, self.identity())

    def state_dict(self) -> dict[str, Any]:
        """The state: the sequences until the cursor over all ranks, and the plan. Equal on all ranks."""
        return state_of(self._cursor, canonical(self.plan).decode(), self.versions())

    def check_state(self, state: Any) -> int:
        """The sequences of a state. Raises UsageError if this recipe gives another past, and says what differs."""
        sequences, digest = sequences_of(state)
        self.reader.require_versions(versions_of(state))
        try:
            before = decode(digest.encode(errors="replace"), RecipePlan)
        except MalformedDataError as error:
            raise UsageError("this is not the state of a recipe", f"state        {digest[:200]}") from error
        if sequences:
            check_past(before, self.plan, sequences)
        return sequences

    def identity(self) -> dict[str, str]:
        """What decides which sequence has which number: the digest of the plan."""
        return {"recipe": digest_of(self.plan)}

    def pass_end(self, _sequence: int) -> int:
        """The sequence at which the last stage ends."""
        return self.sequences

    def after_pass(self, _start: int) -> int:
        """The sequence at which the last stage ends: stages have whole batches."""
        return self.sequences

    def pass_start(self, number: int) -> int:
        """The first sequence. A recipe has one pass: the stages say what is read more than once."""
        if number:
            raise UsageError("a recipe has one pass", "Train for one epoch: the stages of the recipe are all of it.")
        return 0

    def advance(self, sequence: int, batches: int) -> int:
        """The first sequence of a later batch: so many batches after the batch that begins with `sequence`."""
        return self.timeline.advance(sequence, batches)

    def batches(self, first: int, last: int, batches_apart: int = 1) -> Iterator[Batch]:
        """This rank's rows of the global batches that begin with a sequence in [first, last), without skipped ones."""

        def ranges() -> Iterator[tuple[int, int]]:
            start = self.advance(first, 0)
            while start < last:
                yield self._rows(start)
                start = self.advance(start, batches_apart)

        return self.reader.batches(ranges())

    def locate(self, step: int, row: int, position: int) -> tuple[str, int]:
        """The store of a token of a global batch, and the position of the token in the store."""
        if not 0 <= step < self.timeline.steps:
            raise UsageError(f"there is no step {step:,}", f"They are 0 to {self.timeline.steps - 1:,}.")
        sequence = self.timeline.sequence_of(step)
        stage = self.plan.stages[self.timeline.stage_of(sequence)]
        for name, value, limit in (
            ("row", row, stage.batch_sequences),
            ("position", position, stage.sequence_tokens),
        ):
            if not 0 <= value < limit:
                raise UsageError(f"step {step:,} has no {name} {value:,}", f"They are 0 to {limit - 1:,}.")
        return self.reader.locate(sequence + row, position)

    def _rows(self, start: int) -> tuple[int, int]:
        """The sequences of this rank in the batch that begins with this sequence."""
        stage = self.plan.stages[self.timeline.stage_of(start)]
        low, high = self.rank.rows(stage.batch_sequences)
        return start + low, start + high
