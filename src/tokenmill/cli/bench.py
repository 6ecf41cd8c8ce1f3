"""The command that measures this machine, and how its result looks: a table of cells, then what the corpus takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import failures, options
from tokenmill.executors import progress
from tokenmill.system import terminal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from tokenmill.pipeline.bench.forecast import Cell, Forecast
    from tokenmill.pipeline.bench.result import BenchResult

DEFAULT_MARK = "*"
STOPPED = "interrupted: nothing is left behind"
CLEARLY = 1.1
"""How much faster another cell has to be than the default to be worth telling."""


@click.command(
    cls=options.Command,
    short_help="Measure this machine, and what a corpus will take.",
    epilog="\b\nExample:\n  tokenmill bench\n  tokenmill bench data/*.parquet --tokenizer gpt2 "
    "--price-per-core-hour 0.04",
)
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@click.option(
    "--tokenizer", "-t", default="gpt2", show_default=True, metavar="T", help="What is measured, as for `prepare`."
)
@click.option("--version", metavar="V", help="Which version of a dataset: `tokenmill datasets` lists them.")
@click.option("--column", metavar="NAME", help="Where the text is. [default: text, or where the dataset has it]")
@click.option("--separator", metavar="TEXT", help="What stands between documents in .txt files.")
@click.option("--workers", metavar="N,N,...", help="Numbers of workers to try. [default: 1, 2, 4, ... one per core]")
@click.option("--seconds", type=float, default=30.0, show_default=True, metavar="S", help="Time for measuring, in all.")
@click.option(
    "--sample-bytes", metavar="SIZE", help="Take about this much text at most. [default: what fits into the time]"
)
@click.option(
    "--price-per-core-hour", type=float, metavar="P", help="What an hour of one core costs, to tell what all costs."
)
@click.option(
    "--out",
    "-o",
    metavar="DIR",
    help="Measure the disk that DIR is on, where the store will be; what is written there is removed again. "
    "[default: where temporary files go]",
)
@options.storage
@options.cache
@options.everywhere
def bench(sources: tuple[str, ...], as_json: bool, **words: Any) -> None:
    """Measure what each engine and number of workers gives here, and tell what the whole corpus will take.

    Units from all over the SOURCEs are read, encoded and written as a run does it, and removed again. Without SOURCE,
    the text is made up on the spot, and the figures are an upper bound.
    """
    from tokenmill.cli import output  # noqa: PLC0415

    words["separator"] = options.unescape_separator(words["separator"])
    try:
        measured = tokenmill.bench(sources, **words, reporter=progress.for_command(options.quiet()))
    except KeyboardInterrupt:  # there is no store to go on with, as other commands have it
        failures.end_by_signal(STOPPED)
    if as_json:
        output.result(measured, as_json, _measured)
        return
    _print_table(measured.cells)
    terminal.echo()
    output.result(measured, as_json, _measured)
    terminal.echo()
    output.result(measured, as_json, _foretold)


def _print_table(cells: list[Cell]) -> None:
    console = progress.console(highlight=False, markup=False)
    table = _table(cells)
    console.width = max(console.width, console.measure(table, options=console.options.update(width=1000)).maximum)
    console.print(table)


def _table(cells: list[Cell]) -> Table:
    from rich.table import Table  # noqa: PLC0415 - heavy

    from tokenmill.humanize import number  # noqa: PLC0415

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("engine", no_wrap=True)
    for heading in ("workers", "MB/s", "tokens/s", "gain", "read", "encode", "check", "write", "noise"):
        table.add_column(heading, justify="right", no_wrap=True)
    alone = {cell.engine: cell.bytes_per_second for cell in cells if cell.workers == 1}
    last = ""
    for cell in cells:
        first = alone.get(cell.engine)
        steps = (cell.shares.read, cell.shares.encode, cell.shares.check, cell.shares.write)
        table.add_row(
            cell.engine if cell.engine != last else "",
            f"{cell.workers}{DEFAULT_MARK if cell.is_default else ' '}",
            f"{cell.bytes_per_second / 1e6:.1f}",
            number(cell.tokens_per_second),
            f"{cell.bytes_per_second / first:.1f}x" if first else "",
            *(f"{share:.0%}" for share in steps),
            f"{cell.noise:.0%}" if cell.rounds > 1 else "",
            style="bold" if cell.is_default else None,
        )
        last = cell.engine
    return table


def _measured(measured: BenchResult) -> Iterable[tuple[str, str]]:
    from tokenmill.humanize import size  # noqa: PLC0415

    if any(cell.is_default for cell in measured.cells):
        yield DEFAULT_MARK, "what `prepare` does if nothing is said"
    yield "noise", _noise(measured.cells[0].rounds)
    made_up = "made up, so figures are an upper bound" if measured.is_made_up else "from all over the sources"
    yield "sample", f"{size(measured.sample_bytes)} of text, {made_up}"
    yield "written to", f"{measured.written_to}, synced and removed"
    yield "start-up", f"{measured.start_seconds:.1f} s, once a run; in none of the figures above"
    yield "limit", measured.limit
    for notice in measured.notices:
        yield "note", notice


def _foretold(measured: BenchResult) -> Iterable[tuple[str, str]]:
    from tokenmill.humanize import count, number, size  # noqa: PLC0415

    corpus = measured.corpus
    if measured.is_made_up:
        yield "for", f"{size(corpus.text_bytes)} of such text; name your sources to be told of them"
    else:
        yield "corpus", f"{count(corpus.sources, 'file')}, {size(corpus.source_bytes)}"
        yield "text", f"about {size(corpus.text_bytes)} in {count(corpus.documents, 'document')}"
    yield "tokens", f"about {number(corpus.tokens)} ({corpus.bytes_per_token:.2f} bytes each, {measured.tokenizer})"
    yield "disk", f"about {size(corpus.store_bytes)} for the store, {size(corpus.export_bytes)} for an export of it"
    yield from _forecasts(measured)


def _noise(rounds: int) -> str:
    if rounds == 1:
        return "each was measured once: give more --seconds to compare rounds"
    return f"how much slower the slowest of {rounds} rounds was; the best one is told"


def _forecasts(measured: BenchResult) -> Iterable[tuple[str, str]]:
    """What the default takes, and the best if it is clearly better."""
    default, best = measured.default, measured.best
    if default is None:
        yield from _forecast("time", best)
        yield from _needs(best)
        return
    yield from _forecast("time", default)
    yield from _needs(default)
    if default.seconds > CLEARLY * best.seconds:
        yield from _forecast("best", best)


def _forecast(name: str, told: Forecast) -> Iterable[tuple[str, str]]:
    from tokenmill.humanize import count, duration  # noqa: PLC0415

    work = f"{told.core_hours:,.1f} core-hours" if told.core_hours >= 0.1 else f"{told.core_hours:.3f} core-hours"
    yield name, f"about {duration(told.seconds)} with {count(told.workers, 'worker')} of {told.engine}; {work}"
    if told.money is not None:
        yield "money", f"about {told.money:,.2f}" if told.money >= 0.01 else "less than 0.01"


def _needs(told: Forecast) -> Iterable[tuple[str, str]]:
    from tokenmill.humanize import size  # noqa: PLC0415

    if told.machines_for_a_day > 1:
        yield "in 24 h", f"with {told.machines_for_a_day:,} machines like this one"
    yield "reads", f"{size(told.source_bytes_per_second)}/s of the files; a slower disk or network would be the limit"
