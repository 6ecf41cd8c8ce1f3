"""The command `datasets`. It prints a table that fits the terminal, then notes on its figures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

import tokenmill
from tokenmill.cli import options, output
from tokenmill.executors import progress_bar, terminal
from tokenmill.humanize import count, duration, number, size

if TYPE_CHECKING:
    from rich.table import Table

    from tokenmill.results import DatasetListing, VersionInfo

UNKNOWN = "-"
MIN_COLUMNS = 40
# The longest time, such as 27.5 h to 2.3 days. It has its columns always, so that the same others fit on each machine.
TIME_COLUMNS = 18
# The columns that a narrow terminal does not show, in the order in which they are dropped.
OPTIONAL_COLUMNS = ("files", "rows", "download", "disk")


@options.command(
    "List the named datasets and their sizes.",
    "tokenmill datasets fineweb-edu --tokenizer gpt2",
    common=options.GENERAL,
)
@click.argument("name", required=False, metavar="[NAME]")
@click.option(
    "--tokenizer",
    "-t",
    default="gpt2",
    show_default=True,
    metavar="T",
    help="Tokenizer for the disk space and time, as for `prepare`.",
)
def datasets(name: str | None, tokenizer: str, as_json: bool) -> None:
    """List the named datasets with their rows, tokens, download size, disk space and time on this machine.

    With NAME, show one dataset: its versions, license, revision and a command to prepare it. The environment variable
    TOKENMILL_DATASETS names a file with more datasets.
    """
    listing = tokenmill.datasets(name, tokenizer=tokenizer)
    if as_json:
        terminal.echo_json(listing)
        return
    if name is not None:
        output.print_lines(_facts(listing))
        terminal.echo()
    dropped = _print_table(listing, is_single=name is not None)
    terminal.echo()
    output.print_lines(_footnotes(listing))
    if dropped:
        output.print_lines([("hidden", f"{', '.join(dropped)}; use a wider terminal or --json")])
    terminal.echo(f"\n{_next_command(listing, name)}")


def _facts(listing: DatasetListing) -> Iterable[output.Line]:
    dataset = listing.datasets[0]
    yield "dataset", dataset.name
    if dataset.about:
        yield "about", dataset.about
    yield "repository", dataset.repository
    resolved = "" if len(dataset.revision) == 40 else ", resolved to a commit when a run starts"
    yield "revision", f"{dataset.revision}{resolved}"
    yield "license", dataset.licence
    yield "column", dataset.column


def _print_table(listing: DatasetListing, *, is_single: bool) -> tuple[str, ...]:
    """Print the table with as many columns as fit; return the names of the others."""
    console = progress_bar.console(highlight=False, markup=False)
    console.width = max(console.width, MIN_COLUMNS)  # a narrower terminal wraps the lines; rich would cut them off
    for drop in range(len(OPTIONAL_COLUMNS) + 1):
        table = _table(listing, OPTIONAL_COLUMNS[:drop], is_single=is_single)
        if console.measure(table, options=console.options.update(width=10_000)).maximum <= console.width:
            break
    console.print(table)
    return OPTIONAL_COLUMNS[:drop]


def _table(listing: DatasetListing, dropped: tuple[str, ...], *, is_single: bool) -> Table:
    headings = ["files", "rows", "tokens", "download"]
    headings += ["disk"] if listing.token_bytes is not None else []
    headings += ["time"] if listing.bytes_per_second is not None else []
    shown = [heading for heading in headings if heading not in dropped]
    table = output.table(["version"] if is_single else ["dataset", "version"], shown)
    if "time" in shown:
        table.columns[-1].min_width = TIME_COLUMNS
    for dataset in listing.datasets:
        for index, version in enumerate(dataset.versions):
            names = [version.version] if is_single else [dataset.name if index == 0 else "", version.version]
            figures = _figures(version)
            table.add_row(*names, *(figures[heading] for heading in shown))
    return table


def _figures(version: VersionInfo) -> dict[str, str]:
    """What a version has in each column."""
    return {
        "files": UNKNOWN if version.files is None else f"{version.files:,}",
        "rows": UNKNOWN if version.rows is None else f"{version.rows:,}",
        # Names of versions have B for 10^9, so this column has it, too.
        "tokens": UNKNOWN if version.tokens is None else number(version.tokens).replace("G", "B"),
        "download": UNKNOWN if version.bytes is None else size(version.bytes),
        "disk": UNKNOWN if version.disk_bytes is None else size(version.disk_bytes),
        "time": UNKNOWN if version.seconds is None else output.between(version.seconds, duration),
    }


def _footnotes(listing: DatasetListing) -> Iterable[output.Line]:
    versions = (version for dataset in listing.datasets for version in dataset.versions)
    examples = {version.version: version.example for version in versions if version.example}
    for pattern, example in examples.items():
        yield pattern, f"many versions, such as {example}"
    others = f"; the number differs with {listing.tokenizer}" if listing.tokenizer != "gpt2" else ""
    yield "tokens", f"counted with GPT-2{others}"
    if listing.token_bytes is not None:
        bytes_each = f"{listing.token_bytes} bytes per token ({listing.tokenizer})"
        yield "disk", f"of the store, {bytes_each}; exports are extra"
    if listing.bytes_per_second is not None:
        speed = output.between(listing.bytes_per_second, size)
        yield "time", f"at {speed}/s of text with {count(listing.cores, 'worker')}; without the download"
    for notice in listing.notices:
        yield "note", notice


def _next_command(listing: DatasetListing, name: str | None) -> str:
    first = listing.datasets[0].versions[0]
    version, tokenizer = first.example or first.version, listing.tokenizer
    if name is None:
        return f"`tokenmill datasets {listing.datasets[0].name}` shows one dataset."
    to = " --to nanogpt" if listing.token_bytes == 2 else ""  # nanogpt has 2-byte tokens only
    return f"tokenmill prepare {name} --version {version} --tokenizer {tokenizer}{to} \\\n  --out {name}-{version}"
