"""The page of a recipe: the shares of the sources by step, and the figures of each stage and source."""

from __future__ import annotations

from collections.abc import Iterator

from tokenmill.analysis.html.markup import card, card_list, escape, lead, page, section, table
from tokenmill.humanize import count, number
from tokenmill.loader.overview import MixResult, MixStage

# The style sheet has colors for so many sources. Further ones begin again.
COLORS = 8


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
