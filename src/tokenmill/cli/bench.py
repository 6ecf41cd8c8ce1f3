"""The command `bench`. It prints a table of cells, then the forecast for the corpus."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import failures, options, output, workers
from tokenmill.executors import progress_bar, terminal
from tokenmill.humanize import count, duration, number, size

if TYPE_CHECKING:
    from rich.table import Table

    from tokenmill.api.results import BenchResult, Cell, Forecast

DEFAULT_MARK = "*"
STOPPED = "interrupted: all files of the measurement are removed"
# The best cell is shown beside the default only if it is faster by this factor.
CLEARLY = 1.1


@click.command(
    cls=options.Command,
    short_help="Measure this machine, and estimate a corpus.",
    epilog=options.example(
        "tokenmill bench", "tokenmill bench data/*.parquet --tokenizer gpt2 --price-per-core-hour 0.04"
    ),
)
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@click.option(
    "--tokenizer", "-t", default="gpt2", show_default=True, metavar="T", help="Tokenizer to measure, as for `prepare`."
)
@click.option("--version", metavar="V", help="Version of a named dataset; `tokenmill datasets` lists them.")
@click.option("--column", metavar="NAME", help="Column with the text. [default: text, or the named dataset's own]")
@click.option(
    "--separator",
    metavar="TEXT",
    callback=options.unescape_separator,
    help="Document separator in .txt files.",
)
@click.option("--workers", metavar="N,N,...", help="Worker counts to measure. [default: 1, 2, 4, ... one per core]")
@click.option("--seconds", type=float, default=30.0, show_default=True, metavar="S", help="Total time for measuring.")
@click.option("--sample-bytes", metavar="SIZE", help="Maximum text to measure. [default: what fits into the time]")
@click.option(
    "--price-per-core-hour", type=float, metavar="P", help="Price of one core for one hour, to estimate the cost."
)
@click.option(
    "--out",
    "-o",
    metavar="DIR",
    help="Measure the disk of DIR. Files written there are removed. [default: the temporary directory]",
)
@options.storage
@options.cache
@options.general
def bench(sources: tuple[str, ...], as_json: bool, **arguments: Any) -> None:
    """Measure the speed of each engine and worker count here, and estimate the time for the whole corpus.

    The command reads, tokenizes and writes a sample of the SOURCEs as a run does, then removes the files. Without
    SOURCE, the text is generated, and the speeds are an upper bound.
    """
    try:
        result = tokenmill.bench(sources, **arguments, reporter=workers.reporter())
    except KeyboardInterrupt:  # unlike other commands, this one leaves no store to continue with
        failures.end_by_signal(STOPPED)
    if as_json:
        terminal.echo_json(result)
        return
    output.separate_from_progress()
    _print_table(result.cells)
    terminal.echo()
    output.print_groups([("measurement", _measurement(result)), ("estimate", _forecast(result))])


def _print_table(cells: list[Cell]) -> None:
    console = progress_bar.console(highlight=False, markup=False)
    table = _table(cells)
    console.width = max(console.width, console.measure(table, options=console.options.update(width=1000)).maximum)
    console.print(table)


def _table(cells: list[Cell]) -> Table:
    from rich.table import Table  # noqa: PLC0415 - heavy

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("engine", no_wrap=True)
    for heading in ("workers", "MB/s", "tokens/s", "gain", "read", "encode", "check", "write", "noise"):
        table.add_column(heading, justify="right", no_wrap=True)
    single_worker = {cell.engine: cell.bytes_per_second for cell in cells if cell.workers == 1}
    last = ""
    for cell in cells:
        first = single_worker.get(cell.engine)
        steps = (cell.shares.read, cell.shares.encode, cell.shares.check, cell.shares.write)
        table.add_row(
            cell.engine if cell.engine != last else "",
            f"{cell.workers}{DEFAULT_MARK if cell.is_default else ' '}",
            f"{cell.bytes_per_second / 1e6:.1f}",
            number(cell.tokens_per_second),
            f"{cell.bytes_per_second / first:.1f}x" if first else "",
            *(f"{fraction:.0%}" for fraction in steps),
            f"{cell.noise:.0%}" if cell.rounds > 1 else "",
            style="bold" if cell.is_default else None,
        )
        last = cell.engine
    return table


def _measurement(result: BenchResult) -> Iterable[output.Line]:
    if any(cell.is_default for cell in result.cells):
        yield DEFAULT_MARK, "default of `prepare`"
    yield "noise", _noise(result.cells[0].rounds)
    made_up = "generated, so the speeds are an upper bound" if result.is_made_up else "sampled from all sources"
    yield "sample", f"{size(result.sample_bytes)} of text, {made_up}"
    yield "written to", f"{result.written_to}, files were synced and removed"
    yield "start-up", f"{result.start_seconds:.1f} s once per run, not included above"
    yield "limit", result.limit
    for notice in result.notices:
        yield "note", notice


def _forecast(result: BenchResult) -> Iterable[output.Line]:
    corpus = result.corpus
    if result.is_made_up:
        yield "text", f"{size(corpus.text_bytes)} of generated text; name your sources to estimate them"
    else:
        yield "corpus", f"{count(corpus.sources, 'file')}, {size(corpus.source_bytes)}"
        yield "text", f"about {size(corpus.text_bytes)} in {count(corpus.documents, 'document')}"
    yield "tokens", f"about {number(corpus.tokens)} ({corpus.bytes_per_token:.2f} bytes each, {result.tokenizer})"
    yield "disk", f"about {size(corpus.store_bytes)} for the store, {size(corpus.export_bytes)} for an export"
    shown, best = result.default or result.best, result.best
    yield from _time("time", shown)
    if shown.machines_for_a_day > 1:
        yield "in 24 h", f"with {shown.machines_for_a_day:,} machines like this"
    yield (
        "reads",
        f"{size(shown.source_bytes_per_second)}/s from the source files; a slower disk or network would be the limit",
    )
    if shown.seconds > CLEARLY * best.seconds:
        yield from _time("best", best)


def _noise(rounds: int) -> str:
    if rounds == 1:
        return "not known: each was measured once; give more --seconds to compare rounds"
    return f"slowdown of the slowest of {rounds} rounds; fastest round shown"


def _time(name: str, forecast: Forecast) -> Iterable[output.Line]:
    time = f"{duration(forecast.seconds)} with {count(forecast.workers, 'worker')} of {forecast.engine}"
    hours = f"{forecast.core_hours:,.1f}" if forecast.core_hours >= 0.1 else f"{forecast.core_hours:.3f}"
    yield name, f"about {time}; {hours} core-hours"
    if forecast.money is not None:
        yield "cost", f"about {forecast.money:,.2f}" if forecast.money >= 0.01 else "less than 0.01"
