"""`loader`: training batches from stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import get_args

from tokenmill.api.parameters import store_paths
from tokenmill.errors import UsageError
from tokenmill.humanize import parse_size
from tokenmill.options import Stores
from tokenmill.store.held_out import parse_held_out
from tokenmill.system.arguments import checked
from tokenmill.training.batches import DEFAULT_FIELDS, Field, check_fields
from tokenmill.training.loader import Loader, LoaderRank, find_rank
from tokenmill.training.order import Shuffle
from tokenmill.training.packing import Packing
from tokenmill.training.prefetch import DEFAULT_PREFETCH_BYTES
from tokenmill.training.reader import DEFAULT_GRAIN, LoaderOptions
from tokenmill.training.recipe import Recipe, is_recipe, read_recipe
from tokenmill.training.recipe_loader import RecipeLoader
from tokenmill.training.recipe_reader import RecipeReader, recipe_options
from tokenmill.training.split_table import Split

__all__ = ["Loader", "loader"]


@checked
def loader(  # noqa: PLR0913 - the options of the command, by their names
    stores: Stores,
    *,
    sequence_tokens: str | int | None = None,
    batch_sequences: int | None = None,
    seed: int | None = None,
    val: str | float | None = None,
    split: Split = "train",
    shuffle: Shuffle | None = None,
    packing: Packing | None = None,
    grain: str | int | None = None,
    epochs: int | None = None,
    prefetch: str | int = DEFAULT_PREFETCH_BYTES,
    fields: Field | Sequence[Field] = DEFAULT_FIELDS,
    rank: int | None = None,
    world_size: int | None = None,
) -> Loader:
    """Read training batches from a store, from several that are mixed by their sizes, or by a recipe.

    `loader[step]` is the batch of a step: the same in every process, for any number of ranks and workers. A `for` loop
    takes batches from the cursor on, and `state_dict` is one number and the choices that it belongs to. Batches are
    dicts of NumPy arrays; `tokenmill.training.torch` has datasets for PyTorch.

    Args:
        stores: A complete store or several: paths, or addresses such as `s3://bucket/run`; or a recipe, a file that
            ends in .toml or .json. A recipe has its own choices, so only `prefetch`, `fields`, `rank` and `world_size`
            go with it.
        sequence_tokens: The tokens of a sequence. Default: 2,048.
        batch_sequences: The sequences of a batch, over all ranks. Default: 8.
        seed: The seed of the order. Default: 1337.
        val: What is held out for validation: a fraction of the documents (0.01, or `"1%"`), or a split of the sources
            (`"split:validation"`). They are the documents that exports with this value hold out. Default: none.
        split: Which documents to read, if some are held out.
        shuffle: The order: `full` permutes all grains, `window` permutes within windows of a billion tokens, so that
            few parts are read at a time, and `none` keeps the order of the store. Default: `full`.
        packing: `concat` cuts the stream into sequences; `best-fit` fills sequences with whole documents where it can.
            Default: `concat`.
        grain: The tokens that stay together in a shuffle, a multiple of `sequence_tokens`. Default: 8,192, or what
            comes next to it.
        epochs: The epochs of a pass, after which a `for` loop ends. Default: 1.
        prefetch: The memory of this process for batches that are fetched ahead from an object store: `"1GB"`. More
            survives a longer failure of the server, and merges more requests. Local stores need none.
        fields: The arrays of a batch: `input_ids`, `labels`, `tokens`, `position_ids`, `cu_seqlens`, `document_ids`,
            `source_ids`.
        rank: The number of this process, from 0. Default: from torch.distributed, from `RANK`, from Slurm, or 0.
        world_size: The number of processes that share each batch.
    """
    paths = store_paths(stores)
    if any(map(is_recipe, paths)):
        given = {
            "sequence_tokens": sequence_tokens,
            "batch_sequences": batch_sequences,
            "seed": seed,
            "val": val,
            "split": None if split == "train" else split,
            "shuffle": shuffle,
            "packing": packing,
            "grain": grain,
            "epochs": epochs,
        }
        return open_recipe(only_recipe(paths, given), fields, find_rank(rank, world_size), parse_size(prefetch))
    sequence_tokens = 2048 if sequence_tokens is None else sequence_tokens
    batch_sequences = 8 if batch_sequences is None else batch_sequences
    seed, epochs = 1337 if seed is None else seed, 1 if epochs is None else epochs
    shuffle, packing = shuffle or "full", packing or "concat"
    sequence, grain_tokens = _grain(parse_size(sequence_tokens), None if grain is None else parse_size(grain))
    for name, value in (("batch_sequences", batch_sequences), ("epochs", epochs)):
        if value < 1:
            raise UsageError(f"{name} is {value}", "Give a number from 1 on.")
    if not 0 <= seed < 1 << 64:
        raise UsageError(f"{seed} is not a seed", "Give a whole number from 0 to 2^64 - 1.")
    for name, choice, kind in (("split", split, Split), ("shuffle", shuffle, Shuffle), ("packing", packing, Packing)):
        if choice not in get_args(kind):
            raise UsageError(f"there is no {name} {choice!r}", f"Choose from: {', '.join(get_args(kind))}.")
    held_out = held_out_text(val)
    if held_out is None and split == "val":
        raise UsageError("no documents are held out", "Give val=0.01, or another fraction, to read the split val.")
    names = _fields_of(fields, packing)
    options = LoaderOptions(
        stores=tuple(paths),
        sequence_tokens=sequence,
        batch_sequences=batch_sequences,
        grain=grain_tokens,
        seed=seed,
        val=held_out,
        split=split,
        shuffle=shuffle,
        packing=packing,
        epochs=epochs,
        fields=names,
        prefetch_bytes=parse_size(prefetch),
    )
    return Loader(options, find_rank(rank, world_size))


def open_recipe(
    path: str, fields: Field | Sequence[Field], rank: LoaderRank, prefetch_bytes: int = DEFAULT_PREFETCH_BYTES
) -> RecipeLoader:
    """Open the loader of a recipe."""
    recipe = read_recipe(path)
    options = recipe_options(recipe, held_out_text(recipe.val), _fields_of(fields, recipe.packing))
    return RecipeLoader(recipe, replace(options, prefetch_bytes=prefetch_bytes), rank)


def _fields_of(fields: Field | Sequence[Field], packing: str) -> tuple[Field, ...]:
    """The fields of a batch. Raises UsageError if rows that are packed in this way do not have one of them."""
    names = check_fields(fields)
    if packing == "best-fit" and "tokens" in names:
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


def _grain(sequence_tokens: int, grain: int | None) -> tuple[int, int]:
    """The tokens of a sequence and of a grain, which has whole sequences."""
    if sequence_tokens < 1:
        raise UsageError(f"sequence_tokens is {sequence_tokens}", "Give a number from 1 on.")
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
