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

    from tokenmill.results import BenchResult, Cell

DEFAULT_MARK = "*"
STOPPED = "interrupted: all files of the measurement are removed"
# The best cell is shown beside the default only if it is faster by this factor.
CLEARLY = 1.1


@options.command(
    "Measure this machine, and estimate a corpus.",
    "tokenmill bench",
    "tokenmill bench data/*.parquet --tokenizer gpt2",
    declared=("version", "column", "separator"),
    common=(*options.STORAGE, options.CACHE, *options.GENERAL),
)
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@click.option(
    "--tokenizer", "-t", default="gpt2", show_default=True, metavar="T", help="Tokenizer to measure, as for `prepare`."
)
@click.option("--workers", metavar="N,N,...", help="Worker counts to measure. [default: 1, 2, 4, ... one per core]")
@click.option("--seconds", type=float, default=30.0, show_default=True, metavar="S", help="Total time for measuring.")
@click.option(
    "--out",
    "-o",
    metavar="DIR",
    help="Measure the disk of DIR. Files written there are removed. [default: the temporary directory]",
)
def bench(sources: tuple[str, ...], as_json: bool, **arguments: Any) -> None:
    """Measure the speed of each engine and worker count here, and estimate the time for the whole corpus.

    The command reads, tokenizes and writes a sample of the SOURCEs as a run does, then removes the files. Without
    SOURCE, the text is Python's standard library.
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
    table = output.table(["engine"], ["workers", "MB/s", "tokens/s", "gain", "read", "encode", "write", "noise"])
    single_worker = {cell.engine: cell.bytes_per_second for cell in cells if cell.workers == 1}
    last = ""
    for cell in cells:
        first = single_worker.get(cell.engine)
        steps = (cell.shares.read, cell.shares.encode, cell.shares.write)
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
    rounds = result.cells[0].rounds
    if result.default is not None:
        yield DEFAULT_MARK, "default of `prepare`"
    if rounds > 1:
        yield "noise", f"slowdown of the slowest of {rounds} rounds; fastest round shown"
    yield "written to", f"{result.written_to}, files were synced and removed"
    yield "limit", (result.default or result.best).limit
    for notice in result.notices:
        yield "note", notice


def _forecast(result: BenchResult) -> Iterable[output.Line]:
    corpus, shown = result.corpus, result.default or result.best
    if corpus is None:
        yield "text", "Python's standard library; name your sources to estimate them"
        return
    yield "sources", f"{count(corpus.sources, 'file')}, {size(corpus.source_bytes)}"
    yield "text", output.between(corpus.text_bytes, size)
    yield "tokens", f"{output.between(corpus.tokens, number)} ({corpus.bytes_per_token:.2f} bytes each)"
    yield "disk", output.between(corpus.disk_bytes, size)
    yield from _time("time", shown)
    if result.best.bytes_per_second > CLEARLY * shown.bytes_per_second:
        yield from _time("best", result.best)


def _time(name: str, cell: Cell) -> Iterable[output.Line]:
    if cell.seconds and cell.core_hours:
        time = f"{output.between(cell.seconds, duration)} with {count(cell.workers, 'worker')} of {cell.engine}"
        hours = f", {output.between(cell.core_hours, '{:,.1f}'.format)} core-hours" * (cell.core_hours.high >= 1)
        yield name, f"{time}{hours}"
