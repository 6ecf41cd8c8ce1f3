"""The command that lists datasets, and how they look: a table that fits the terminal, and what its figures mean."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from tokenmill.cli import options
from tokenmill.executors import progress
from tokenmill.system import terminal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.table import Table

    from tokenmill.api.datasets import DatasetListing, VersionInfo

UNKNOWN = "-"
MIN_COLUMNS = 40
DISPENSABLE = ("files", "rows", "download", "disk")
"""What is left out of the table where a terminal is narrow, in this order."""


@click.command(
    cls=options.Command,
    short_help="List the datasets that have a name, and their sizes.",
    epilog="\b\nExample:\n  tokenmill datasets fineweb-edu --tokenizer gpt2",
)
@click.argument("name", required=False, metavar="[NAME]")
@click.option(
    "--tokenizer",
    "-t",
    default="gpt2",
    show_default=True,
    metavar="T",
    help="What disk and time are told for, as for `prepare`.",
)
@options.everywhere
def datasets(name: str | None, tokenizer: str, as_json: bool) -> None:
    """List the datasets that have a name: rows, tokens, download, disk and the time they take here.

    With NAME, one of them: its versions, licence, revision and the command to type. The environment variable
    TOKENMILL_DATASETS names a file with more datasets.
    """
    from tokenmill.api import datasets as offer  # noqa: PLC0415 - after the options are known to be right
    from tokenmill.cli import output  # noqa: PLC0415

    offered = offer.datasets(name, tokenizer=tokenizer)
    if as_json:
        output.result(offered, as_json, _footnotes)
        return
    if name is not None:
        output.result(offered, as_json, _facts)
        terminal.echo()
    left_out = _print_table(offered, one=name is not None)
    terminal.echo()
    output.result(offered, as_json, _footnotes)
    if left_out:
        output.result(
            left_out, as_json, lambda names: [("left out", f"{', '.join(names)}: for a wider terminal, or --json")]
        )
    terminal.echo(f"\n{_command(offered, name)}")


def _facts(offered: DatasetListing) -> Iterable[tuple[str, str]]:
    dataset = offered.datasets[0]
    yield "dataset", dataset.name
    if dataset.about:
        yield "about", dataset.about
    yield "repository", dataset.repository
    yield "revision", dataset.revision + ("" if len(dataset.revision) == 40 else ", pinned when a run is planned")
    yield "licence", dataset.licence
    yield "column", dataset.column


def _print_table(offered: DatasetListing, *, one: bool) -> tuple[str, ...]:
    """Print the table with as many columns as there is room for, and tell which are left out."""
    console = progress.console(highlight=False, markup=False)
    console.width = max(console.width, MIN_COLUMNS)  # a narrow terminal breaks lines; it does not cut them off
    for count in range(len(DISPENSABLE) + 1):
        table = _table(offered, DISPENSABLE[:count], one=one)
        if console.measure(table, options=console.options.update(width=10_000)).maximum <= console.width:
            break
    console.print(table)
    return DISPENSABLE[:count]


def _table(offered: DatasetListing, left_out: tuple[str, ...], *, one: bool) -> Table:
    from rich.table import Table  # noqa: PLC0415 - heavy

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ["version"] if one else ["dataset", "version"]:
        table.add_column(heading, no_wrap=True)
    shown = [place for place, heading in enumerate(_headings(offered)) if heading not in left_out]
    for place in shown:
        table.add_column(_headings(offered)[place], justify="right", no_wrap=True)
    for dataset in offered.datasets:
        for place, version in enumerate(dataset.versions):
            names = [version.version] if one else [dataset.name if place == 0 else "", version.version]
            figures = _figures(version, offered)
            table.add_row(*names, *(figures[place] for place in shown))
    return table


def _headings(offered: DatasetListing) -> list[str]:
    disk = ["disk"] if offered.token_bytes is not None else []
    return ["files", "rows", "tokens", "download", *disk, *(["time"] if offered.bytes_per_second is not None else [])]


def _figures(version: VersionInfo, offered: DatasetListing) -> list[str]:
    from tokenmill.humanize import duration, number, size  # noqa: PLC0415

    files, rows = (UNKNOWN if value is None else f"{value:,}" for value in (version.files, version.rows))
    tokens = UNKNOWN if version.tokens is None else number(version.tokens).replace("G", "B")  # as versions are named
    download, disk = (UNKNOWN if value is None else size(value) for value in (version.bytes, version.disk_bytes))
    seconds = UNKNOWN if version.seconds is None else duration(version.seconds)
    figures = [files, rows, tokens, download, *([disk] if offered.token_bytes is not None else [])]
    return [*figures, *([seconds] if offered.bytes_per_second is not None else [])]


def _footnotes(offered: DatasetListing) -> Iterable[tuple[str, str]]:
    from tokenmill.humanize import count, size  # noqa: PLC0415

    known = (version for dataset in offered.datasets for version in dataset.versions)
    examples = {version.version: version.example for version in known if version.example}
    for pattern, example in examples.items():
        yield pattern, f"many versions, such as {example}"
    others = f"; {offered.tokenizer} makes more or fewer" if offered.tokenizer != "gpt2" else ""
    yield "tokens", f"as GPT-2 makes them{others}"
    if offered.token_bytes is not None:
        yield (
            "disk",
            f"of the store, {offered.token_bytes} bytes a token ({offered.tokenizer}); exports come on top",
        )
    if offered.bytes_per_second is not None:
        speed = f"{size(offered.bytes_per_second)}/s of text"
        yield "time", f"on {count(offered.cores, 'core')} at {speed}, as measured; network not counted"
    for notice in offered.notices:
        yield "note", notice


def _command(offered: DatasetListing, name: str | None) -> str:
    first = offered.datasets[0].versions[0]
    version, tokenizer = first.example or first.version, offered.tokenizer
    if name is None:
        return f"`tokenmill datasets {offered.datasets[0].name}` tells more of one."
    to = " --to nanogpt" if offered.token_bytes == 2 else ""  # which takes no larger tokens
    return f"tokenmill prepare {name} --version {version} --tokenizer {tokenizer}{to} \\\n  --out {name}-{version}"
