"""The essence of a store in the terminal: aligned lines, and bars of block characters that fit its width."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len, set_cell_size

from tokenmill.analysis.visible_text import display_name, make_visible
from tokenmill.cli import output
from tokenmill.executors import progress
from tokenmill.humanize import count, duration, escape_control_characters, number, size
from tokenmill.store.part import NULL
from tokenmill.system import terminal
from tokenmill.system.terminal import Styled

if TYPE_CHECKING:
    from tokenmill.analysis.history import History
    from tokenmill.analysis.statistics import Breakdown, Statistics
    from tokenmill.api.report import ReportResult

EIGHTHS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589\u2588"
HEIGHTS = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
MIN_COLUMNS, MAX_COLUMNS = 40, 110
SHOWN = 10
QUANTILES = ("1%", "25%", "75%", "95%", "99%")
"""Those that fit into a line; the median has one already."""

BOLD = {"bold": True}
NAME_COLUMNS = 13
"""Where values begin, as in every command."""


@dataclass(frozen=True, slots=True)
class Row:
    """A bar, its name, and figures that are aligned."""

    name: str
    value: float
    figures: tuple[str, ...]


def as_json(record: Any) -> None:
    """For tools."""
    terminal.echo_json(record)


def reported(done: ReportResult) -> None:
    """Where the page is, and the first lines of it."""
    output.result(done, False, lambda it: [("report", it.path), *_lines(it.statistics)])


def statistics(found: Statistics) -> None:
    """All of it."""
    output.result(found, False, lambda it: [("store", it.directory), *_lines(it)])
    _bars("documents by length in tokens (each row: from its number up to twice as many)", list(_lengths(found)))
    _bars(_title(found.sources, "tokens by source"), _shares(found.sources, found.tokens, are_paths=True))
    for each in found.columns:
        _bars(_title(each, f"tokens by {each.by}"), _shares(each, found.tokens))
    _bars("most frequent tokens, and their ids", _tokens(found))
    if found.history is not None and any(found.history.tokens_per_second):
        _course(found.history)


def _lines(found: Statistics) -> Iterator[tuple[str, str]]:
    yield "tokens", f"{found.tokens:,} in {count(found.documents, 'document')}"
    ratio = f", {found.bytes_per_token:.2f} bytes per token" if found.bytes_per_token is not None else ""
    yield "text", f"{size(found.text_bytes)} from {count(found.sources.count, 'source')}{ratio}"
    if found.documents:
        known = found.lengths
        yield "lengths", f"median {known.quantiles['50%']:,}, mean {known.mean:,.0f}, longest {known.longest:,}"
        yield "quantiles", ", ".join(f"{name[:-1]} % {known.quantiles[name]:,}" for name in QUANTILES)
    used = found.vocabulary
    half = f"; {used.covering['50%']:,} of them make up half of the tokens" if used.covering else ""
    yield "vocabulary", f"{used.used:,} of {used.size:,} ids used{half}"
    yield "duplicates", _duplicates(found)
    yield "left out", _left_out(found)
    if found.history is not None:
        yield "run", _run(found.history)
    for notice in found.notices:
        yield "note", notice


def _duplicates(found: Statistics) -> str:
    known = found.duplicates
    if known is None:
        return "not looked for"
    if not known.documents:
        return "none"
    documents = f"{count(known.documents, 'document')} ({_share(known.documents, found.documents)})"
    return f"{documents}, {known.tokens:,} tokens ({_share(known.tokens, found.tokens)})"


def _left_out(found: Statistics) -> str:
    if not found.skipped.rows:
        return "no row"
    named = {("without text" if reason == NULL else reason): rows for reason, rows in found.skipped.reasons.items()}
    reasons = ", ".join(f"{rows:,} {reason}" for reason, rows in list(named.items())[:5])
    return f"{count(found.skipped.rows, 'row')}: {reasons}"


def _run(known: History) -> str:
    speed = f", {number(known.tokens / known.working_seconds)} tokens/s" if known.working_seconds else ""
    memory = f", at most {size(known.memory[0].peak_bytes)} each" if known.memory else ""
    crew = f", {count(known.workers, 'worker')}{memory}" if known.workers else ""
    troubles = ((sum(known.deaths.values()), "death"), (sum(known.failures.values()), "failure"))
    trouble = "".join(f", {count(n, what)}" for n, what in troubles if n)
    sessions = f" in {known.sessions:,} sessions" if known.sessions > 1 else ""
    return f"{duration(known.working_seconds)}{sessions}{speed}{crew}{trouble}"


def _lengths(found: Statistics) -> Iterator[Row]:
    """One bar for each octave: a terminal has not so many lines."""
    octaves: dict[int, int] = {}
    for each in found.lengths.bins:
        octave = 1 << max(each.first.bit_length() - 1, 0) if each.first else 0
        octaves[octave] = octaves.get(octave, 0) + each.documents
    for first, documents in octaves.items():
        yield Row(f"{first:,}", documents, (number(documents), _share(documents, found.documents)))


def _title(found: Breakdown, title: str) -> str:
    more = "more than " if found.folded else ""
    least = " (at least: they are too many to count each)" if found.folded else ""
    shown = min(len(found.largest), SHOWN)
    largest = f", the largest {shown} of {more}{found.count:,}" if found.count > shown else ""
    ratio = ", and bytes per token" if any(each.bytes is not None for each in found.largest) else ""
    return f"{title}{ratio}{largest}{least}"


def _shares(found: Breakdown, tokens: int, *, are_paths: bool = False) -> list[Row]:
    """A bar for each of the largest; of paths, the folder that all of them are in is left out."""
    names = [each.name for each in found.largest[:SHOWN]]
    folder = names[0].rpartition("/")[0] + "/" if are_paths and names and "/" in names[0] else ""
    same = all(name.startswith(folder) for name in names)
    return [
        Row(
            display_name(escape_control_characters(each.name.removeprefix(folder) if same else each.name)),
            each.tokens,
            (
                number(each.tokens),
                _share(each.tokens, tokens),
                *([f"{each.bytes / each.tokens:.2f}"] if each.bytes is not None and each.tokens else [""]),
            ),
        )
        for each in found.largest[:SHOWN]
    ]


def _tokens(found: Statistics) -> list[Row]:
    return [
        Row(make_visible(each.piece), each.count, (number(each.count), _share(each.count, found.tokens), str(each.id)))
        for each in found.vocabulary.most_frequent[:SHOWN]
    ]


def _course(known: History) -> None:
    columns = min(_columns() - NAME_COLUMNS - 2, len(known.tokens_per_second))
    most = max(known.tokens_per_second) or 1.0
    picked = [known.tokens_per_second[place * len(known.tokens_per_second) // columns] for place in range(columns)]
    line = "".join(HEIGHTS[min(int(value / most * len(HEIGHTS)), len(HEIGHTS) - 1)] for value in picked)
    terminal.echo("\n", Styled("tokens per second over the run", BOLD), f", at most {number(most)}")
    terminal.echo(_written(f"  {line}"))


def _bars(title: str, rows: Sequence[Row]) -> None:
    """A bar for each row, as long as there is room for."""
    if not rows:
        return
    terminal.echo("\n", Styled(title, BOLD), *(f"\n{line}" for line in _drawn(rows)))


def _drawn(rows: Sequence[Row]) -> Iterable[str]:
    columns = _columns() - 4
    widths = [max(map(cell_len, figures)) for figures in zip(*(row.figures for row in rows), strict=True)]
    right = sum(widths) + 2 * len(widths)
    name = min(max(cell_len(row.name) for row in rows), max(columns - right - 10, 12), columns // 2)
    room = max(columns - right - name, 1)
    most = max(row.value for row in rows) or 1
    for row in rows:
        figures = "".join(f"  {figure:>{width}}" for figure, width in zip(row.figures, widths, strict=True))
        yield f"  {_written(_fitted(row.name, name))} {_written(_bar(row.value / most, room))}{figures}".rstrip()


def _fitted(name: str, columns: int) -> str:
    """A name in so many columns; of a long one the end, which tells paths apart."""
    if cell_len(name) <= columns:
        return set_cell_size(name, columns)
    while cell_len(name) > columns - 1:
        name = name[max(1, (cell_len(name) - columns) // 2) :]
    return set_cell_size(f"\u2026{name}", columns)


def _bar(share: float, columns: int) -> str:
    eighths = max(round(share * columns * 8), 1 if share else 0)
    full, rest = divmod(eighths, 8)
    return (EIGHTHS[8] * full + (EIGHTHS[rest] if rest else "")).ljust(columns)


def _written(line: str) -> str:
    """What the terminal can show of it."""
    encoding = sys.stdout.encoding or "ascii"
    if encoding.lower().replace("-", "") == "utf8":
        return line
    blocks = str.maketrans({**dict.fromkeys(EIGHTHS[1:] + HEIGHTS, "#"), "\u2423": "_"})
    return line.translate(blocks).encode(encoding, "replace").decode(encoding)


def _columns() -> int:
    return min(max(progress.console().width, MIN_COLUMNS), MAX_COLUMNS)


def _share(part: int, whole: int) -> str:
    if not whole:
        return "-"
    if 0.9995 <= part / whole < 1:
        return ">99.9 %"
    return "<0.1 %" if 0 < part / whole < 0.001 else f"{part / whole:.1%}".replace("%", " %")
