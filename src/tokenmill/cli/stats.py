"""The command `stats`. It prints lines and bar charts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

import tokenmill
from tokenmill.cli import options, output, workers
from tokenmill.executors import terminal
from tokenmill.humanize import count, duration, escape_control_characters, number, size

if TYPE_CHECKING:
    from tokenmill.cli.bar_charts import Bar
    from tokenmill.results import Breakdown, History, Statistics

SHOWN_BARS = 10
# The quantiles that fit into a line. The median is in the line above.
QUANTILES = ("1%", "25%", "75%", "95%", "99%")

by_column = click.option(
    "--by",
    multiple=True,
    metavar="COLUMN",
    help="Also count tokens by the values of this column, such as language, or by host: host:url; repeatable.",
)


@options.command(
    "Show lengths, sources and frequent tokens of a store.",
    "tokenmill stats tokens --by language",
    "tokenmill stats tokens-2025 tokens-2026",
    declared=("workers", "memory"),
)
@click.argument("directory", metavar="DIR...", nargs=-1, required=True)
@by_column
def stats(directory: tuple[str, ...], as_json: bool, **arguments: Any) -> None:
    """Count the tokens, lengths, vocabulary, sources and duplicates of a store, and summarize its run.

    The command reads all parts once. With --by, it also reads that column: the kept one (prepare --keep), or that of
    the sources. Several stores are counted together.
    """
    from tokenmill.analysis import PRELOAD  # noqa: PLC0415 - after click has checked the options

    with workers.start_workers(PRELOAD) as executor:
        statistics = tokenmill.stats(directory, **arguments, reporter=workers.reporter(), executor=executor)
    if as_json:
        terminal.echo_json(statistics)
    else:
        output.separate_from_progress()
        output.print_lines([*stores(statistics), *lines(statistics)])
        _print_charts(statistics)


def stores(statistics: Statistics) -> Iterator[output.Line]:
    """A line for each store, with its tokens if there are several."""
    if statistics.stores is None:
        yield "store", statistics.directory
        return
    for store in statistics.stores.largest:
        yield "store", f"{store.name}: {store.tokens:,} tokens in {count(store.documents, 'document')}"


def lines(statistics: Statistics) -> Iterator[output.Line]:
    """The lines that `stats` and `report` print."""
    yield "tokens", f"{statistics.tokens:,} in {count(statistics.documents, 'document')}"
    per_token = statistics.bytes_per_token
    ratio = f", {per_token:.2f} bytes per token" if per_token is not None else ""
    yield "text", f"{size(statistics.text_bytes)} from {count(statistics.sources.count, 'source')}{ratio}"
    if statistics.documents:
        lengths = statistics.lengths
        yield "lengths", f"median {lengths.quantiles['50%']:,}, mean {lengths.mean:,.0f}, longest {lengths.longest:,}"
        yield "percentiles", ", ".join(f"p{name[:-1]} {lengths.quantiles[name]:,}" for name in QUANTILES)
    vocabulary = statistics.vocabulary
    half = f"; {vocabulary.covering['50%']:,} ids make up half of the tokens" if vocabulary.covering else ""
    yield "vocabulary", f"{vocabulary.used:,} of {vocabulary.size:,} ids used{half}"
    yield "duplicates", _duplicates(statistics)
    yield from output.trained_lines(statistics.trained_tokens, statistics.tokens)
    yield from output.control_lines(statistics.control_tokens)
    yield "skipped", _skipped(statistics)
    if statistics.history is not None:
        yield "run", _run(statistics.history)
    for notice in statistics.notices:
        yield "note", notice


def _duplicates(statistics: Statistics) -> str:
    duplicates = statistics.duplicates
    if duplicates is None:
        return "not counted"
    if not duplicates.documents:
        return "none"
    documents = f"{count(duplicates.documents, 'document')} ({_percent(duplicates.documents, statistics.documents)})"
    return f"{documents}, {duplicates.tokens:,} tokens ({_percent(duplicates.tokens, statistics.tokens)})"


def _skipped(statistics: Statistics) -> str:
    skipped = statistics.skipped
    if not skipped.rows:
        return "0 rows"
    reasons = ", ".join(f"{rows:,} {reason}" for reason, rows in list(skipped.reasons.items())[:5])
    return f"{count(skipped.rows, 'row')}: {reasons}"


def _run(history: History) -> str:
    speed = f", {number(history.tokens / history.working_seconds)} tokens/s" if history.working_seconds else ""
    memory = f", at most {size(history.peak_bytes)} each" if history.peak_bytes else ""
    worker_text = f", {count(history.workers, 'worker')}{memory}" if history.workers else ""
    counts = ((sum(history.deaths.values()), "death"), (sum(history.failures.values()), "failure"))
    trouble = "".join(f", {count(number, what)}" for number, what in counts if number)
    sessions = f" in {history.sessions:,} sessions" if history.sessions > 1 else ""
    return f"{duration(history.working_seconds)}{sessions}{speed}{worker_text}{trouble}"


def _print_charts(statistics: Statistics) -> None:
    from tokenmill.cli.bar_charts import print_bars  # noqa: PLC0415 - heavy

    title = "documents by length in tokens (power-of-two bins)"
    print_bars(title, _length_bars(statistics))
    sources = statistics.sources
    print_bars(
        _title(sources, "tokens by source", statistics.tokens),
        _breakdown_bars(sources, statistics.tokens, are_paths=True),
    )
    for column in statistics.columns:
        print_bars(
            _title(column, f"tokens by {column.by}", statistics.tokens), _breakdown_bars(column, statistics.tokens)
        )
    print_bars("most frequent tokens, and their ids", _token_bars(statistics))


def _length_bars(statistics: Statistics) -> list[Bar]:
    """One bar for each power of two: the bins are more than a terminal has lines."""
    from tokenmill.cli.bar_charts import Bar  # noqa: PLC0415 - heavy

    octaves: dict[int, int] = {}
    for length_bin in statistics.lengths.bins:
        octave = 1 << max(length_bin.first.bit_length() - 1, 0) if length_bin.first else 0
        octaves[octave] = octaves.get(octave, 0) + length_bin.documents
    return [
        Bar(f"{first:,}", documents, (number(documents), _percent(documents, statistics.documents)))
        for first, documents in octaves.items()
    ]


def _title(breakdown: Breakdown, title: str, tokens: int) -> str:
    """The title of a chart. If it shows only the largest values, their share of all tokens is in it."""
    more = "more than " if breakdown.folded else ""
    at_least = " (minimum counts: too many values to count each)" if breakdown.folded else ""
    shown = min(len(breakdown.largest), SHOWN_BARS)
    share = _percent(sum(entry.tokens for entry in breakdown.largest[:shown]), tokens)
    largest = f", the largest {shown} of {more}{breakdown.count:,} ({share})" if breakdown.count > shown else ""
    ratio = ", and bytes per token" if any(entry.bytes is not None for entry in breakdown.largest) else ""
    return f"{title}{ratio}{largest}{at_least}"


def _breakdown_bars(breakdown: Breakdown, tokens: int, *, are_paths: bool = False) -> list[Bar]:
    """A bar for each of the largest values. Paths are shown without the folder that all of them are in."""
    from tokenmill.analysis.visible_text import display_name  # noqa: PLC0415 - heavy
    from tokenmill.cli.bar_charts import Bar  # noqa: PLC0415

    largest = breakdown.largest[:SHOWN_BARS]
    folder = largest[0].name.rpartition("/")[0] + "/" if are_paths and largest and "/" in largest[0].name else ""
    if not all(entry.name.startswith(folder) for entry in largest):
        folder = ""
    return [
        Bar(
            display_name(escape_control_characters(entry.name.removeprefix(folder))),
            entry.tokens,
            (
                number(entry.tokens),
                _percent(entry.tokens, tokens),
                f"{entry.bytes / entry.tokens:.2f}" if entry.bytes is not None and entry.tokens else "",
            ),
        )
        for entry in largest
    ]


def _token_bars(statistics: Statistics) -> list[Bar]:
    from tokenmill.analysis.visible_text import make_visible  # noqa: PLC0415 - heavy
    from tokenmill.cli.bar_charts import Bar  # noqa: PLC0415

    return [
        Bar(
            make_visible(token.piece),
            token.count,
            (number(token.count), _percent(token.count, statistics.tokens), str(token.id)),
        )
        for token in statistics.vocabulary.most_frequent[:SHOWN_BARS]
    ]


def _percent(part: int, whole: int) -> str:
    """A percentage. It is 0 % only if `part` is 0, and 100 % only if `part` equals `whole`."""
    if not whole:
        return "-"
    if 0.9995 <= part / whole < 1:
        return ">99.9 %"
    return "<0.1 %" if 0 < part / whole < 0.001 else f"{part / whole:.1%}".replace("%", " %")
