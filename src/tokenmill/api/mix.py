"""`mix`: what a recipe comes to, and what differs between two."""

from __future__ import annotations

import os

import msgspec

from tokenmill.analysis.html.destination import SUFFIX, existing_folder
from tokenmill.api.loader import open_recipe_reader
from tokenmill.api.mix_page import render_mix
from tokenmill.api.parameters import output_text
from tokenmill.errors import UsageError
from tokenmill.exports.blends import BlendSource, write_blend
from tokenmill.loader.changes import check_past, find_changes
from tokenmill.loader.overview import MixResult, overview
from tokenmill.loader.recipe_reader import RecipeReader
from tokenmill.options import StrPath
from tokenmill.system.arguments import checked


@checked
def mix(  # noqa: PLR0913 - the options of the command, by their names
    recipe: StrPath,
    other: StrPath | None = None,
    *,
    step: int | None = None,
    html: StrPath | None = None,
    print: str | None = None,  # noqa: A002 - the name of the option
    stage: int | None = None,
) -> MixResult:
    """Compute what a recipe comes to: tokens, sequences, shares and repeats of each stage and source.

    The stores are opened, and no token is read. A recipe that is impossible raises, with the arithmetic in the message.

    Args:
        recipe: The recipe: a file that ends in .toml or .json.
        other: Another recipe. The result is that of the other one, with what differs and from which step on.
        step: Whether the other recipe can continue a run of the first one at this step.
        html: The file of a page with a picture of the stages.
        print: Write the mixture of a stage as the file of a trainer, in `blend`: `megatron`, `olmo`, `nanotron`,
            `mds`, `maxtext` or `energon`. Each source needs files for it.
        stage: The stage that `print` writes, from 1. A recipe with one stage needs no number.
    """
    path = os.fspath(recipe)
    first = open_recipe_reader(path)
    if other is None:
        if step is not None:
            raise UsageError("--step needs two recipes", "Give the recipe of the run, and the one that is to continue.")
        result = overview(path, *first)
    else:
        result = _compare(path, first[1], os.fspath(other), step)
    if print is not None:
        result = msgspec.structs.replace(result, blend=write_blend(print, _blend_sources(result, stage)))
    elif stage is not None:
        raise UsageError("--stage needs --print", "It chooses the stage whose mixture is printed.")
    if html is not None:
        _write_page(output_text(html), render_mix(result))
    return result


def _blend_sources(result: MixResult, stage: int | None) -> list[BlendSource]:
    """The sources with the tokens of a stage. A trainer's file has one mixture, and each stage has its own."""
    if stage is None and len(result.stages) > 1:
        shares = [", ".join(f"{one.source} {one.share:.1%}" for one in each.sources) for each in result.stages]
        raise UsageError(
            f"the recipe has {len(result.stages)} stages, and a trainer's file holds one mixture",
            *(f"stage {number:<6} {text}" for number, text in enumerate(shares, 1)),
            "Give --stage N, and train each stage with its own file.",
        )
    number = 1 if stage is None else stage
    if not 1 <= number <= len(result.stages):
        raise UsageError(f"there is no stage {number}", f"They are 1 to {len(result.stages)}.")
    tokens = {one.source: one.tokens for one in result.stages[number - 1].sources}
    return [
        BlendSource(one.source, tuple(one.stores), tokens.get(one.source, 0), one.repeat, one.where, result.val)
        for one in result.sources
    ]


def _compare(path: str, before: RecipeReader, other: str, step: int | None) -> MixResult:
    """Describe the other recipe, and what differs from the first."""
    recipe, now = open_recipe_reader(other)
    changes = find_changes(before.plan, now.plan)
    result = msgspec.structs.replace(
        overview(other, recipe, now),
        other=path,
        changes=changes,
        same_steps=changes[0].step if changes else None,
    )
    if step is None:
        return result
    line = before.timeline
    if not 0 <= step <= line.steps:
        raise UsageError(f"there is no step {step:,} in {path}", f"They are 0 to {line.steps:,}.")
    reason = None
    try:
        if step:
            check_past(before.plan, now.plan, line.sequence_of(step))
    except UsageError as error:
        reason = error.text
    return msgspec.structs.replace(result, step=step, takes_over=reason is None, reason=reason)


def _write_page(path: str, content: str) -> None:
    """Write a page in place of an older one. Raises UsageError if the name is not that of a page."""
    if not path.lower().endswith(SUFFIX):
        raise UsageError(f"--html {path} is not the name of a page", f"Give a name that ends in {SUFFIX}.")
    parent, name = os.path.split(path)
    folder = existing_folder("--html", parent or ".")
    with folder.publish(name) as file:
        file.write(content.encode())
