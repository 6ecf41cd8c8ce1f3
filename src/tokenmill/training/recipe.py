"""The recipe of a training: sources by name, and stages that mix them. TOML, or JSON with the same keys.

The classes here are the only definition of the file. Reading checks against them, and the JSON Schema in the
documentation is generated from them.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tokenmill.choices import Packing, Shuffle
from tokenmill.errors import UsageError
from tokenmill.storage import scheme
from tokenmill.training.reader import DEFAULT_GRAIN

# What the name of a source may be.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

# A recipe is smaller than this.
MAX_BYTES = 16 << 20

# Characters of a name that an error shows.
MAX_SHOWN = 100

# What an error says of `grain` with the packing `whole`.
WHOLE_GRAIN = "Leave out grain: with packing whole, single sequences are shuffled."

SUFFIXES = (".toml", ".json")

Positive = Annotated[int, Meta(ge=1)]
Amount = Annotated[
    int | str,
    Meta(description='A number of tokens (1000000, "40B"), "all": the rest of the epoch, or "2x": two epochs.'),
]


class RecipeSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One store, or several that are read as one, under a name."""

    store: Annotated[
        str | list[str],
        Meta(description="A store or several: paths relative to the recipe, or addresses such as s3://bucket/run."),
    ]
    repeat: Annotated[float, Meta(gt=0, description="How often the recipe may read the source; more is refused.")] = 1
    where: Annotated[
        str | None,
        Meta(description="A condition on kept columns, such as language = 'de'. Only its documents are read."),
    ] = None


class RecipeStage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the training with one mixture, one sequence length and one batch size."""

    sequence_tokens: Annotated[Positive, Meta(description="The tokens of a sequence; they divide `grain`.")]
    batch_sequences: Annotated[Positive, Meta(description="The sequences of a batch, over all ranks.")]
    tokens: Annotated[
        Amount | dict[str, Amount],
        Meta(description="The tokens of the stage, divided by `weights`; or the tokens of each source."),
    ]
    weights: Annotated[
        dict[str, Annotated[float, Meta(ge=0)]] | None,
        Meta(description="The share of each source in the tokens of the stage. Only the proportion matters."),
    ] = None
    stop_step: Annotated[
        Positive | None,
        Meta(description="End the stage before this step of the recipe. The steps before do not change."),
    ] = None
    skip: Annotated[
        list[tuple[Annotated[int, Meta(ge=0)], Annotated[int, Meta(ge=0)]]],
        Meta(description="Ranges [first, last] of steps of the recipe that are left out."),
    ] = []


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A training: the sources, and the stages in their order."""

    sources: Annotated[
        dict[str, str | list[str] | RecipeSource],
        Meta(min_length=1, description="A store, several stores, or a store with limits, under each name."),
    ]
    stages: Annotated[list[RecipeStage], Meta(min_length=1, description="The stages, in their order.")]
    seed: Annotated[int, Meta(ge=0, description="The seed of the order.")] = 1337
    grain: Annotated[
        Positive, Meta(description="The tokens that stay together in a shuffle: the longest sequence of any stage.")
    ] = DEFAULT_GRAIN
    val: Annotated[
        float | str | None,
        Meta(description='What is held out: a fraction of the documents (0.01, or "1%"), or "split:NAME".'),
    ] = None
    shuffle: Annotated[Shuffle, Meta(description="The order of the grains of a source.")] = "full"
    packing: Annotated[Packing, Meta(description="How documents fill sequences.")] = "concat"

    def source(self, name: str) -> RecipeSource:
        """The source of this name, with its defaults."""
        entry = self.sources[name]
        return entry if isinstance(entry, RecipeSource) else RecipeSource(entry)


def is_recipe(path: str) -> bool:
    """Whether a path is that of a recipe, by its ending; a directory is a store."""
    return path.lower().endswith(SUFFIXES) and not os.path.isdir(path)


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a recipe, for editors."""
    schema = msgspec.json.schema(Recipe)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": "tokenmill recipe", **schema}


def read_recipe(path: str) -> Recipe:
    """Read a recipe. Paths of its stores are relative to its directory. Raises UsageError for an invalid recipe."""
    try:
        with open(path, "rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"the recipe {path} cannot be read", f"reason       {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise UsageError(f"the recipe {path} is too large", f"reason       it has more than {MAX_BYTES:,} bytes")
    try:
        is_json = path.lower().endswith(".json")
        content = json.loads(data, object_pairs_hook=_unique) if is_json else tomllib.loads(data.decode())
    except ValueError as error:  # also tomllib's, json's and that of bytes that are not UTF-8
        kind = "JSON" if is_json else "TOML"
        raise UsageError(f"the recipe {path} is not valid {kind}", f"reason       {error}") from error
    except RecursionError as error:
        raise UsageError(f"the recipe {path} is not valid", "reason       its values are nested too deep") from error
    return parse_recipe(content, path)


def parse_recipe(content: Any, path: str) -> Recipe:
    """A recipe from the content of a file. `path` is for messages, and for relative paths of stores."""
    try:
        _check_keys(content, path)
        recipe = msgspec.convert(content, Recipe)
    except msgspec.ValidationError as error:
        reason, _, place = str(error).partition(" - at ")
        where = f"place        {place.strip('`').removeprefix('$.') or 'the top'}"
        raise UsageError(f"the recipe {path} is not valid", where, f"reason       {reason}") from error
    _check_sources(recipe, path)
    _check_stages(recipe, path)
    if recipe.packing == "whole":
        if "grain" in content:
            raise _invalid(path, "grain", WHOLE_GRAIN)
        recipe = msgspec.structs.replace(recipe, grain=recipe.stages[0].sequence_tokens)
    return msgspec.structs.replace(recipe, sources=_with_paths(recipe, os.path.dirname(path)))


def _check_sources(recipe: Recipe, path: str) -> None:
    """Raise UsageError for a source without a valid name, a store or a finite `repeat`."""
    for name in recipe.sources:
        source = recipe.source(name)
        if not NAME.fullmatch(name):
            raise _invalid(
                path, f"sources.{name[:MAX_SHOWN]}", "the name of a source has letters, digits, '.', '_' and '-'"
            )
        if not source.store:
            raise _invalid(path, f"sources.{name}.store", "there is no store")
        if not math.isfinite(source.repeat):
            raise _invalid(path, f"sources.{name}.repeat", "it is not a finite number")


def _check_stages(recipe: Recipe, path: str) -> None:
    """Raise UsageError for a stage with a source that the recipe does not have, or a weight that is not finite."""
    for number, stage in enumerate(recipe.stages, 1):
        if not all(map(math.isfinite, (stage.weights or {}).values())):
            raise _invalid(path, f"stage {number}, weights", "a weight is not a finite number")
        for key, named in (("weights", stage.weights), ("tokens", stage.tokens)):
            for name in named if isinstance(named, Mapping) else ():
                if name not in recipe.sources:
                    raise _invalid(path, f"stage {number}, {key}", _unknown("source", name, list(recipe.sources)))


def _with_paths(recipe: Recipe, directory: str) -> dict[str, str | list[str] | RecipeSource]:
    """The sources with the paths of their stores relative to the working directory."""
    sources: dict[str, str | list[str] | RecipeSource] = {}
    for name in recipe.sources:
        entry = recipe.source(name)
        stores = [entry.store] if isinstance(entry.store, str) else entry.store
        paths = [store if scheme(store) else os.path.join(directory, os.path.expanduser(store)) for store in stores]
        sources[name] = msgspec.structs.replace(entry, store=paths)
    return sources


def _check_keys(content: Any, path: str) -> None:
    """Raise UsageError for a key that recipes do not have, with the key that it resembles."""
    if not isinstance(content, dict):
        raise _invalid(path, "the top", "a recipe is a table of keys")
    tables: list[tuple[str, Any, type[msgspec.Struct]]] = [("the top", content, Recipe)]
    sources, stages = content.get("sources"), content.get("stages")
    if isinstance(sources, dict):
        tables += [(f"sources.{name}", value, RecipeSource) for name, value in sources.items()]
    if isinstance(stages, list):
        tables += [(f"stage {number}", value, RecipeStage) for number, value in enumerate(stages, 1)]
    for place, table, kind in tables:
        for key in table if isinstance(table, dict) else ():
            if key not in kind.__struct_fields__:
                raise _invalid(path, place, _unknown("key", key, list(kind.__struct_fields__)))


def _unknown(what: str, name: str, known: list[str]) -> str:
    name = name[:MAX_SHOWN]
    close = difflib.get_close_matches(name, known, 1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(known)}"
    return f"there is no {what} {name!r}: {hint}"


def _invalid(path: str, place: str, reason: str) -> UsageError:
    return UsageError(f"the recipe {path} is not valid", f"place        {place}", f"reason       {reason}")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of some pairs. TOML refuses a key that is given twice; this does the same for JSON."""
    content: dict[str, Any] = {}
    for name, value in pairs:
        if name in content:
            raise ValueError(f"the key {name[:MAX_SHOWN]!r} is given twice")
        content[name] = value
    return content
