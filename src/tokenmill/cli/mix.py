"""The command `mix`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

import tokenmill
from tokenmill.cli import options, output
from tokenmill.executors import terminal
from tokenmill.humanize import count, escape_control_characters

if TYPE_CHECKING:
    from tokenmill.results import MixResult, MixStage


@options.command(
    "Show what a recipe comes to, or what differs between two.",
    "tokenmill mix recipe.toml",
    "tokenmill mix recipe.toml --html recipe.html",
    "tokenmill mix recipe.toml changed.toml --step 12000",
    "tokenmill mix recipe.toml --print megatron --stage 1 > blend.txt",
)
@click.argument("recipe", metavar="RECIPE")
@click.argument("other", metavar="[RECIPE2]", required=False)
@click.option(
    "--step", type=click.IntRange(0), metavar="N", help="Whether RECIPE2 can continue a run of RECIPE at step N."
)
@click.option("--html", metavar="FILE", help="Write a page with a picture of the stages.")
@click.option(
    "--print",
    "trainer",
    metavar="TRAINER",
    help="Print the trainer's own blend file over exports of the sources: megatron, olmo, nanotron, mds, "
    "maxtext, energon.",
)
@click.option(
    "--stage", type=click.IntRange(1), metavar="N", help="The stage that --print writes, if there are several."
)
def mix(
    recipe: str,
    other: str | None,
    as_json: bool,
    step: int | None,
    html: str | None,
    trainer: str | None,
    stage: int | None,
) -> None:
    """Show what a recipe comes to: tokens, sequences, share, repeats and what is left over, per stage and source.

    With RECIPE2, show what differs and from which step on. The exit code is 1 if RECIPE2 cannot continue the run at
    step N.
    """
    result = tokenmill.mix(recipe, other, step=step, html=html, print=trainer, stage=stage)
    if as_json:
        terminal.echo_json(result)
    elif result.blend is not None:
        terminal.echo(result.blend, nl=False)
    else:
        _show(result)
    if result.takes_over is False:
        raise click.exceptions.Exit(1)


def _show(result: MixResult) -> None:
    output.print_lines(_lines(result))
    if result.changes is None:
        for number, stage in enumerate(result.stages, 1):
            terminal.echo()
            _print_stage(number, stage)


def _lines(result: MixResult) -> Iterable[output.Line]:
    yield "recipe", result.recipe
    if result.other is not None:
        yield "compared", f"with {result.other}"
    yield "total", f"{count(result.tokens, 'token')} in {count(result.steps, 'step')}"
    if result.changes is None:
        for one in result.sources:
            rest = f", {count(one.tail_tokens, 'token')} at the end fill no grain" if one.tail_tokens else ""
            yield one.source, f"{count(one.epoch_tokens, 'token')} in an epoch, read {one.epochs:.3f} times{rest}"
            if one.where is not None:
                yield "", f"documents where {escape_control_characters(one.where)}"
            yield from output.waste_lines("", one.padding_tokens, one.epoch_tokens, one.long_documents, one.long_tokens)
            if one.pending_tokens:
                yield "", f"{count(one.pending_tokens, 'token')} wait for a stage with shorter sequences"
        return
    yield from (("changed", f"step {one.step:,}: {one.what}, {one.before} -> {one.now}") for one in result.changes)
    same = "all steps" if result.same_steps is None else count(result.same_steps, "step")
    yield "equal", f"{same} from the start"
    if result.takes_over is not None:
        verdict = "can" if result.takes_over else "cannot"
        yield "takes over", f"{result.recipe} {verdict} continue a run of {result.other} at step {result.step:,}"
        for line in (result.reason or "").splitlines()[1:]:
            yield "", line.strip()


HEAD = ("source", "tokens", "sequences", "share", "epochs", "left over")


def _print_stage(number: int, stage: MixStage) -> None:
    """Print the table of a stage."""
    last = stage.first_step + stage.steps - 1
    skipped = f", {count(stage.skipped_steps, 'step')} skipped" if stage.skipped_steps else ""
    shape = f"{stage.batch_sequences:,} x {stage.sequence_tokens:,} tokens"
    terminal.echo(
        terminal.Styled(f"stage {number}: steps {stage.first_step:,} to {last:,} of {shape}{skipped}", output.HEADING)
    )
    rows = [HEAD, *_rows(stage)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    for row in rows:
        cells = [
            f"{row[0]:<{widths[0]}}",
            *(f"{cell:>{width}}" for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        terminal.echo(output.INDENT + "  ".join(cells))


def _rows(stage: MixStage) -> Iterator[tuple[str, ...]]:
    for one in stage.sources:
        yield (
            escape_control_characters(one.source),
            f"{one.tokens:,}",
            f"{one.sequences:,}",
            f"{one.share:.2%}",
            f"{one.epochs:.3f}",
            f"{one.left_tokens:,}",
        )
