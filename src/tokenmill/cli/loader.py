"""The command `loader`: the first batches of a training, readable, and the speed on this machine."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options, output
from tokenmill.executors import progress_bar, terminal
from tokenmill.humanize import count, number

if TYPE_CHECKING:
    from tokenmill.api.loader_preview import LoaderPreview, RowPiece

# How text is shown that is trained on: as added words of `git diff --word-diff`, where there are no colors.
TRAINED_STYLE = "black on #caffbf"
BEGIN, END = "{+", "+}"

# Characters of a sequence that are shown.
SHOWN_CHARACTERS = 300


@options.command(
    "Show training batches, and measure how fast they are read.",
    "tokenmill loader tokens --sequence-tokens 2048 --batch-sequences 512",
    "tokenmill loader web books --val 0.01 --split val --step 100",
    record="TrainingOptions",
    declared=None,
)
@click.argument("stores", nargs=-1, required=True, metavar="DIR...|RECIPE")
@click.option(
    "--rank", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Rank whose rows are read."
)
@click.option(
    "--world-size",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of ranks that share each batch.",
)
@click.option("--step", type=click.IntRange(0), default=0, show_default=True, metavar="N", help="Batch to show.")
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    default=2.0,
    show_default=True,
    metavar="S",
    help="Time of the measurement; 0 for none.",
)
def loader(stores: tuple[str, ...], step: int, seconds: float, as_json: bool, **arguments: Any) -> None:
    """Show the batch of a step as text, and measure how many tokens a second one process reads.

    DIR is a complete store. Several stores are mixed by their sizes. RECIPE is a file that names stores and stages.
    `tokenmill.loader` in Python gives the same batches to a training.
    """
    from tokenmill.api.loader_preview import RowPiece, preview  # noqa: PLC0415 - heavy

    opened = tokenmill.loader(list(stores), **arguments)
    facts = preview(opened, step, seconds)
    if as_json:
        terminal.echo_json(facts)
        return
    output.print_lines(_lines(opened, facts))
    pieces = facts.pieces or [[RowPiece(text, is_trained=False)] for text in facts.rows]
    for row, text in enumerate(pieces, facts.rank * len(pieces)):
        terminal.echo(f"\nstep {step:,}, row {row:,}")
        _print_row(text)


def _print_row(pieces: list[RowPiece]) -> None:
    """Print the beginning of a row. What is trained on has a color, or marks if the terminal has no colors."""
    from rich.text import Text  # noqa: PLC0415 - heavy

    console = progress_bar.console(soft_wrap=not sys.stdout.isatty(), highlight=False)
    shown, left = [], SHOWN_CHARACTERS
    for piece in pieces:
        text = terminal.printable(piece.text[:left])
        shown.append((text, piece.is_trained))
        left -= len(piece.text)
        if left <= 0:
            break
    rest = [" ..."] if left < 0 or len(shown) < len(pieces) else []
    if not console.color_system:
        marked = [f"{BEGIN}{text}{END}" if is_trained else text for text, is_trained in shown]
        terminal.echo("".join([*marked, *rest]))
        return
    styled = [(text, TRAINED_STYLE if is_trained else "") for text, is_trained in shown]
    console.print(Text.assemble(*styled, *rest))


def _lines(opened: tokenmill.Loader, facts: LoaderPreview) -> Iterable[output.Line]:
    grain, pieces = opened.options.grain, facts.documents
    sequences, tail = count(facts.sequences, "sequence"), count(facts.tail_tokens, "token")
    yield "stores", ", ".join(facts.stores)
    if opened.stages > 1:
        yield "recipe", f"{facts.tokens:,} tokens: {sequences} in {count(opened.stages, 'stage')}"
        yield "steps", f"{facts.steps:,}; `tokenmill mix` shows those of each stage"
    else:
        yield "epoch", f"{facts.tokens:,} tokens: {sequences} of {opened.options.sequence_tokens:,}"
        batch, epochs = count(opened.options.batch_sequences, "sequence"), opened.options.epochs
        yield "steps", f"{facts.steps:,} of {batch}{f', in {epochs:,} epochs' if epochs > 1 else ''}"
    yield "tail", f"{tail} at the end fill no grain of {grain:,}"
    waste = facts.padding_tokens, facts.epoch_tokens, facts.long_documents, facts.long_tokens
    yield from output.waste_lines("packing", *waste)
    yield "documents", f"{pieces.pieces_per_row:.2f} in a sequence, {pieces.whole:.0%} of them whole"
    if facts.pieces is not None:
        yield "trained", f"in color below, or between {BEGIN} and {END}"
    yield "fields", "; ".join(f"{name} {array}" for name, array in facts.fields.items())
    if facts.world_size > 1:
        yield "rank", f"{facts.rank:,} of {facts.world_size:,}"
    is_short = len(facts.digest) <= SHOWN_CHARACTERS
    yield "state", facts.digest if is_short else "one number, and the plan of the recipe"
    if facts.tokens_per_second:
        yield "speed", f"{number(facts.tokens_per_second)} tokens/s in one process"
