"""`loader`: training batches from stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tokenmill.api.parameters import store_paths
from tokenmill.choices import Field, Packing
from tokenmill.errors import UsageError
from tokenmill.humanize import parse_size
from tokenmill.options import BatchOptions, TrainingOptions
from tokenmill.store.held_out import parse_held_out
from tokenmill.system.arguments import options_of, takes
from tokenmill.training.batches import DEFAULT_FIELDS, check_fields
from tokenmill.training.loader import Loader, LoaderRank, find_rank
from tokenmill.training.prefetch import DEFAULT_PREFETCH_BYTES
from tokenmill.training.reader import DEFAULT_GRAIN, LoaderOptions
from tokenmill.training.recipe import WHOLE_GRAIN, Recipe, is_recipe, read_recipe
from tokenmill.training.recipe_loader import RecipeLoader
from tokenmill.training.recipe_reader import RecipeReader, recipe_options

__all__ = ["Loader", "loader"]


@takes(TrainingOptions)
def loader(options: TrainingOptions) -> Loader:
    """Read training batches from a store, from several that are mixed by their sizes, or by a recipe.

    `loader[step]` is the batch of a step: the same in every process, for any number of ranks and workers. A `for` loop
    takes batches from the cursor on, and `state_dict` is one number and the choices that it belongs to. Batches are
    dicts of NumPy arrays; `tokenmill.training.torch` has datasets for PyTorch.
    """
    paths, rank = store_paths(options.stores), find_rank(options.rank, options.world_size)
    fields = DEFAULT_FIELDS if options.fields is None else options.fields
    prefetch_bytes = parse_size(options.prefetch)
    if any(map(is_recipe, paths)):
        given = {name: getattr(options, name) for name in (*options_of(BatchOptions), "epochs")}
        given["split"] = None if options.split == "train" else options.split
        return open_recipe(only_recipe(paths, given), fields, rank, prefetch_bytes)
    packing = options.packing or "concat"
    sequence, grain = _grain(
        parse_size(2048 if options.sequence_tokens is None else options.sequence_tokens),
        None if options.grain is None else parse_size(options.grain),
        packing,
    )
    seed = 1337 if options.seed is None else options.seed
    if not 0 <= seed < 1 << 64:
        raise UsageError(f"{seed} is not a seed", "Give a whole number from 0 to 2^64 - 1.")
    held_out = held_out_text(options.val)
    if held_out is None and options.split == "val":
        raise UsageError("no documents are held out", "Give val=0.01, or another fraction, to read the split val.")
    chosen = LoaderOptions(
        stores=tuple(paths),
        sequence_tokens=sequence,
        batch_sequences=options.batch_sequences or 8,
        grain=grain,
        seed=seed,
        val=held_out,
        split=options.split,
        shuffle=options.shuffle or "full",
        packing=packing,
        epochs=options.epochs or 1,
        fields=_fields_of(fields, packing),
        prefetch_bytes=prefetch_bytes,
    )
    return Loader(chosen, rank)


def open_recipe(
    path: str, fields: str | Sequence[Field], rank: LoaderRank, prefetch_bytes: int = DEFAULT_PREFETCH_BYTES
) -> RecipeLoader:
    """Open the loader of a recipe."""
    recipe = read_recipe(path)
    options = recipe_options(recipe, held_out_text(recipe.val), _fields_of(fields, recipe.packing))
    return RecipeLoader(recipe, replace(options, prefetch_bytes=prefetch_bytes), rank)


def _fields_of(fields: str | Sequence[Field], packing: str) -> tuple[Field, ...]:
    """The fields of a batch. Raises UsageError if rows that are packed in this way do not have one of them."""
    names = check_fields(fields)
    if packing != "concat" and "tokens" in names:
        raise UsageError("packed rows have no field tokens", "Use input_ids and labels: documents have no next token.")
    return names


def open_recipe_reader(path: str) -> tuple[Recipe, RecipeReader]:
    """Read a recipe, and open its stores."""
    recipe = read_recipe(path)
    return recipe, RecipeReader(recipe, recipe_options(recipe, held_out_text(recipe.val), DEFAULT_FIELDS))


def only_recipe(paths: Sequence[str], given: Mapping[str, object]) -> str:
    """The recipe, if it is given alone. Raises UsageError if stores or choices are given with it."""
    if len(paths) > 1:
        raise UsageError("a recipe is given with other stores or recipes", "Name the stores in the recipe.")
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise UsageError(
            f"{names[0]} is given with a recipe",
            f"recipe       {paths[0]}",
            "The recipe has this choice: change it there.",
        )
    return paths[0]


def _grain(sequence_tokens: int, grain: int | None, packing: Packing) -> tuple[int, int]:
    """The tokens of a sequence and of a grain, which has whole sequences."""
    if sequence_tokens < 1:
        raise UsageError(f"sequence_tokens is {sequence_tokens}", "Give a number from 1 on.")
    if packing == "whole":
        if grain not in {None, sequence_tokens}:
            raise UsageError(f"a grain of {grain:,} tokens with packing whole", WHOLE_GRAIN)
        return sequence_tokens, sequence_tokens
    if grain is None:
        grain = max(DEFAULT_GRAIN // sequence_tokens, 1) * sequence_tokens
    if grain < 1 or grain % sequence_tokens:
        raise UsageError(
            f"a grain of {grain:,} tokens does not have whole sequences of {sequence_tokens:,} tokens",
            "Give a grain that is a multiple of sequence_tokens.",
        )
    return sequence_tokens, grain


def held_out_text(val: str | float | None) -> str | None:
    """What is held out: a fraction as its shortest text, or `split:NAME`; None if no document is."""
    return None if val is None else parse_held_out(str(val))
