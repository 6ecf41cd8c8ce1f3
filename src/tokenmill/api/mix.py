"""`mix`: what a recipe comes to, and what differs between two; with `html`, as a page."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec

from tokenmill.analysis.destinations import page_destination
from tokenmill.analysis.html.markup import card, card_list, escape, lead, page, section, table
from tokenmill.api.loader import open_recipe_reader
from tokenmill.api.parameters import output_text
from tokenmill.errors import UsageError
from tokenmill.exports.blends import BlendSource, write_blend
from tokenmill.humanize import count, number
from tokenmill.options import StrPath
from tokenmill.system.arguments import checked
from tokenmill.training.changes import check_past, find_changes
from tokenmill.training.overview import MixResult, MixStage, overview
from tokenmill.training.recipe_reader import RecipeReader

# The style sheet has colors for so many sources. Further ones begin again.
COLORS = 8


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
        folder, name = page_destination("--html", output_text(html))
        with folder.publish(name) as file:
            file.write(render_mix(result).encode())
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


def render_mix(result: MixResult) -> str:
    """The page of a recipe."""
    name = result.recipe.rpartition("/")[2]
    sections = [_shares(result), *(_stage(index, stage) for index, stage in enumerate(result.stages, 1))]
    body = "\n".join([card_list(_cards(result)), *sections, _sources(result)])
    return page(name, "mix", result.recipe, body)


def _cards(result: MixResult) -> Iterator[str]:
    yield card("Tokens", number(result.tokens), f"{result.tokens:,}" if result.tokens >= 1000 else "")
    yield card("Steps", f"{result.steps:,}", count(len(result.stages), "stage"))
    yield card("Sources", f"{len(result.sources):,}", f"held out: {result.val}" if result.val else "")
    yield card("Seed", str(result.seed), f"grains of {result.grain:,} tokens")


def _shares(result: MixResult) -> str:
    """A column for each stage, as wide as its steps, with the shares of its sources above each other."""
    names = [one.source for one in result.sources]
    bars = []
    for index, stage in enumerate(result.stages, 1):
        below = 0.0
        for one in stage.sources:
            title = f"stage {index}, {one.source}: {one.share:.2%}, {one.tokens:,} tokens, {one.epochs:.2f} epochs"
            bars.append(
                f'<rect class="c{names.index(one.source) % COLORS}" x="{100 * stage.first_step / result.steps:.3f}" '
                f'y="{100 - 100 * (below + one.share):.3f}" width="{100 * stage.steps / result.steps:.3f}" '
                f'height="{100 * one.share:.3f}"><title>{escape(title)}</title></rect>'
            )
            below += one.share
    legend = "".join(f'<li class="c{index % COLORS}">{escape(name)}</li>' for index, name in enumerate(names))
    scale = "".join(f'<span style="bottom:{at}%">{at} %</span>' for at in (0, 25, 50, 75, 100))
    starts = "".join(
        f'<span style="left:{100 * stage.first_step / result.steps:.2f}%">{stage.first_step:,}</span>'
        for stage in result.stages
    )
    figure = (
        f'<figure class="plot"><ul class="legend">{legend}</ul><div class="frame" style="--y:5ch">'
        f'<div class="y" aria-hidden="true">{scale}</div><div class="area">'
        '<svg viewBox="0 0 100 100" preserveAspectRatio="none" role="img" aria-label="Shares of the sources by step">'
        f'{"".join(bars)}</svg></div><div class="x" aria-hidden="true">{starts}</div></div></figure>'
    )
    return section("shares", "Shares by step", lead("The tokens of each source in a batch."), figure)


def _stage(index: int, stage: MixStage) -> str:
    last = stage.first_step + stage.steps - 1
    shape = f"{stage.batch_sequences:,} x {stage.sequence_tokens:,} tokens"
    sentence = f"Steps {stage.first_step:,} to {last:,} of {shape}: {count(stage.tokens, 'token')}."
    rows = (
        [escape(one.source), f"{one.share:.2%}", f"{one.tokens:,}", f"{one.sequences:,}", f"{one.epochs:.2f}"]
        for one in stage.sources
    )
    columns = table(["source", "share", "tokens", "sequences", "epochs at its end"], rows)
    return section(f"stage-{index}", f"Stage {index}", lead(sentence), columns)


def _sources(result: MixResult) -> str:
    rows = (
        [escape(one.source), f"{one.tokens:,}", f"{one.epoch_tokens:,}", f"{one.epochs:.2f}", f"{one.left_tokens:,}"]
        for one in result.sources
    )
    headings = ["source", "tokens read", "tokens of an epoch", "epochs", "left over"]
    return section("sources", "Sources", table(headings, rows))
