"""What a recipe comes to: tokens, sequences, shares, repeats and what is left over, for each stage and source."""

from __future__ import annotations

import msgspec

from tokenmill.humanize import Readable
from tokenmill.training.changes import RecipeChange
from tokenmill.training.recipe import Recipe
from tokenmill.training.recipe_reader import RecipeReader


class MixSource(Readable, msgspec.Struct, frozen=True):
    """A source in one stage.

    `asked_tokens` is what the recipe says, `tokens` what whole sequences and batches come to. `epochs` is how often the
    source has been read when the stage ends, and `left_tokens` those of its tokens that have not been read by then.
    """

    source: str
    asked_tokens: int
    tokens: int
    sequences: int
    share: float
    epochs: float
    left_tokens: int


class MixStage(Readable, msgspec.Struct, frozen=True):
    """A stage: steps [first_step, first_step + steps) of the recipe, of which some may be skipped."""

    first_step: int
    steps: int
    skipped_steps: int
    sequence_tokens: int
    batch_sequences: int
    sequences: int
    tokens: int
    sources: list[MixSource]


class MixTotal(Readable, msgspec.Struct, frozen=True):
    """A source in the whole recipe.

    An epoch has `epoch_tokens`, of which the recipe does not read `left_tokens`; `tail_tokens` at the ends of the
    stores fill no grain. `pending_tokens` are rests of grains that wait for a stage with shorter sequences. `where` is
    the condition on the documents of the source. With the packing `whole`, `padding_tokens` of an epoch are padding,
    and `long_documents` with `long_tokens` are left out because they are longer than a sequence.
    """

    source: str
    stores: list[str]
    epoch_tokens: int
    tail_tokens: int
    repeat: float
    tokens: int
    epochs: float
    left_tokens: int
    pending_tokens: int
    where: str | None = None
    padding_tokens: int = 0
    long_documents: int = 0
    long_tokens: int = 0


class MixResult(Readable, msgspec.Struct, frozen=True):
    """What a recipe comes to. With a second recipe: what differs, the earliest first, and whether it can take over.

    `takes_over` is whether the second recipe can continue a run of the first at `step`. `same_steps` is the number of
    steps at the beginning that are equal; None if all are. `blend` is the file of a trainer. `val` is what is
    held out: a fraction of the documents, or `split:NAME`.
    """

    recipe: str
    seed: int
    grain: int
    steps: int
    sequences: int
    tokens: int
    stages: list[MixStage]
    sources: list[MixTotal]
    other: str | None = None
    changes: list[RecipeChange] | None = None
    same_steps: int | None = None
    step: int | None = None
    takes_over: bool | None = None
    reason: str | None = None
    blend: str | None = None
    val: str | None = None


def overview(path: str, recipe: Recipe, reader: RecipeReader) -> MixResult:
    """Describe an opened recipe."""
    stages = []
    repeats = {name: recipe.source(name).repeat for name in recipe.sources}
    epochs = {name: source.tokens for name, source in reader.merged.items()}
    for resolved in reader.resolved:
        plan, total = resolved.plan, sum(resolved.given.values())
        sources = [
            MixSource(
                source=name,
                asked_tokens=resolved.asked[name],
                tokens=tokens,
                sequences=tokens // plan.sequence_tokens,
                share=tokens / total,
                epochs=resolved.cursors[name].used / epochs[name],
                left_tokens=resolved.cursors[name].unread(epochs[name]),
            )
            for name, tokens in resolved.given.items()
        ]
        skipped = sum(last + 1 - first for first, last in plan.skip)
        shape = (plan.sequence_tokens, plan.batch_sequences, plan.sequences)
        stages.append(MixStage(resolved.first_step, plan.steps, skipped, *shape, total, sources))
    last = reader.resolved[-1].cursors
    totals = [
        MixTotal(
            source=name,
            stores=[member.stream.store.directory for member in source.members],
            epoch_tokens=source.tokens,
            tail_tokens=source.tail_tokens,
            repeat=repeats[name],
            tokens=last[name].used,
            epochs=last[name].used / source.tokens,
            left_tokens=last[name].unread(source.tokens),
            pending_tokens=last[name].pending_tokens,
            where=source.where,
            padding_tokens=source.waste.padding_tokens,
            long_documents=source.waste.long_documents,
            long_tokens=source.waste.long_tokens,
        )
        for name, source in reader.merged.items()
    ]
    line = reader.timeline
    tokens = sum(stage.tokens for stage in stages)
    return MixResult(
        path, recipe.seed, recipe.grain, line.steps, line.sequences, tokens, stages, totals, val=reader.plan.val
    )
