"""The sequences of a recipe by their numbers, through all of its stages."""

from __future__ import annotations

import itertools

import numpy as np

from tokenmill.choices import Field
from tokenmill.errors import UsageError
from tokenmill.sources import splits_of
from tokenmill.store.held_out import require_split
from tokenmill.training.batches import Span
from tokenmill.training.budgets import ResolvedStage, resolve
from tokenmill.training.packing import PackedWindows
from tokenmill.training.reader import (
    LoaderOptions,
    SequenceReader,
    chosen_stores,
    first_documents,
    open_source,
    open_stores,
)
from tokenmill.training.recipe import Recipe
from tokenmill.training.source import MergedSource
from tokenmill.training.stages import RecipePlan, Timeline


def recipe_options(recipe: Recipe, val: str | None, fields: tuple[Field, ...]) -> LoaderOptions:
    """The options of a recipe. The length of sequences and the size of batches are those of the first stage."""
    first = recipe.stages[0]
    stores = dict.fromkeys(store for name in recipe.sources for store in recipe.source(name).store)
    return LoaderOptions(
        stores=tuple(stores),
        sequence_tokens=first.sequence_tokens,
        batch_sequences=first.batch_sequences,
        grain=recipe.grain,
        seed=recipe.seed,
        val=val,
        split="train",
        shuffle=recipe.shuffle,
        packing=recipe.packing,
        fields=fields,
    )


def open_sources(recipe: Recipe, options: LoaderOptions) -> dict[str, MergedSource]:
    """Open the sources of a recipe, in the order of their names. All stores need the same tokenizer."""
    names: dict[str, str] = {}
    for name in recipe.sources:
        stores = recipe.source(name).store
        if len(set(stores)) < len(stores):
            raise UsageError(f"the source {name} names a store twice", f"stores       {', '.join(stores)}")
        for store in stores:
            other = names.setdefault(store, name)
            if other != name and None in {recipe.source(other).where, recipe.source(name).where}:
                raise UsageError(
                    f"the store {store} is in two sources",
                    f"sources      {other}, {name}",
                    "A store can be in several sources if each has a `where`.",
                )
    opened = dict(zip(names, open_stores(tuple(names)), strict=True))
    require_split(options.val, (split for store in opened.values() for split in splits_of(store.sources)))
    before, merged, windows = first_documents(list(opened.values())), {}, PackedWindows()
    for number, name in enumerate(sorted(recipe.sources)):
        source = recipe.source(name)
        chosen = chosen_stores(options, [opened[store] for store in source.store])
        members = [open_source(options, store, before[store], number, windows, source.where) for store in chosen]
        merged[name] = MergedSource(members, recipe.shuffle, recipe.seed)
    return merged


class RecipeReader(SequenceReader):
    """The sequences of a recipe, numbered from 0 on through all stages, over all ranks."""

    def __init__(self, recipe: Recipe, options: LoaderOptions) -> None:
        self.options = options
        self.merged = open_sources(recipe, options)
        edges = itertools.accumulate((len(source.members) for source in self.merged.values()), initial=0)
        self._first_member = dict(zip(self.merged, edges, strict=False))
        self.names = list(self.merged)
        self.sources = [member for source in self.merged.values() for member in source.members]
        self.is_remote = any(source.stream.is_remote for source in self.sources)
        self.resolved: list[ResolvedStage] = resolve(recipe, {name: one.tokens for name, one in self.merged.items()})
        self.plan = RecipePlan(
            seed=recipe.seed,
            grain=recipe.grain,
            val=options.val,
            shuffle=recipe.shuffle,
            packing=recipe.packing,
            sources={name: source.digest for name, source in self.merged.items()},
            stages=tuple(stage.plan for stage in self.resolved),
        )
        self.timeline = Timeline(self.plan)

    def row_tokens(self, sequence: int) -> int:
        """The tokens of a sequence."""
        return self.plan.stages[self.timeline.stage_of(sequence)].sequence_tokens

    def spans(self, first: int, last: int) -> list[Span]:
        """The ranges of the streams that sequences [first, last) of one stage are made from, in order."""
        number = self.timeline.stage_of(first)
        stage, cursors = self.plan.stages[number], self.timeline.cursors[number]
        base, length = self.timeline.first_sequences[number], stage.sequence_tokens
        names = list(stage.counts)
        member, start = np.empty((2, last - first), np.int64)
        for source, low, high, rows in stage.mixture.ranges(first - base, last - base):
            name = names[source]
            which, starts = self.merged[name].locate(cursors[name].starts(low, high, length))
            member[rows], start[rows] = self._first_member[name] + which, starts
        is_next = (np.diff(member) == 0) & (np.diff(start) == length)  # rows that continue the row before them
        edges = [0, *(np.flatnonzero(~is_next) + 1).tolist(), last - first]
        ranges = [
            (self.sources[int(member[low])], int(start[low]), int(start[high - 1]) + length)
            for low, high in itertools.pairwise(edges)
        ]
        return [span for source, low, high in ranges for span in source.rows.spans(low, high, length)]
