"""Bar charts of block characters that fit the width of the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size

from tokenmill.executors import progress_bar, terminal
from tokenmill.executors.terminal import Styled

EIGHTHS = " \u258f\u258e\u258d\u258c\u258b\u258a\u2589\u2588"
MIN_COLUMNS, MAX_COLUMNS = 40, 110
BOLD = {"bold": True}


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar with a name on its left and aligned figures on its right."""

    name: str
    value: float
    figures: tuple[str, ...]


def print_bars(title: str, bars: Sequence[Bar]) -> None:
    """Print a chart with one line for each bar; nothing if there is no bar."""
    if bars:
        terminal.echo("\n", Styled(title, BOLD), *(f"\n{line}" for line in _chart(bars)))


def _chart(bars: Sequence[Bar]) -> Iterable[str]:
    columns = _columns() - 4
    widths = [max(map(cell_len, figures)) for figures in zip(*(bar.figures for bar in bars), strict=True)]
    right = sum(widths) + 2 * len(widths)
    left = min(max(cell_len(bar.name) for bar in bars), max(columns - right - 10, 12), columns // 2)
    middle = max(columns - right - left, 1)
    largest = max(bar.value for bar in bars) or 1
    for bar in bars:
        figures = "".join(f"  {figure:>{width}}" for figure, width in zip(bar.figures, widths, strict=True))
        blocks = _blocks(bar.value / largest, middle)
        yield f"  {_encodable(_fit(bar.name, left))} {_encodable(blocks)}{figures}".rstrip()


def _fit(name: str, columns: int) -> str:
    """Pad a name, or cut off its start: paths differ at their ends."""
    if cell_len(name) <= columns:
        return set_cell_size(name, columns)
    while cell_len(name) > columns - 1:
        name = name[max(1, (cell_len(name) - columns) // 2) :]
    return set_cell_size(f"\u2026{name}", columns)


def _blocks(fraction: float, columns: int) -> str:
    eighths = max(round(fraction * columns * 8), 1 if fraction else 0)
    full, rest = divmod(eighths, 8)
    return (EIGHTHS[8] * full + (EIGHTHS[rest] if rest else "")).ljust(columns)


def _encodable(line: str) -> str:
    """Replace the characters that the encoding of stdout does not have."""
    encoding = sys.stdout.encoding or "ascii"
    if encoding.lower().replace("-", "") == "utf8":
        return line
    blocks = str.maketrans({**dict.fromkeys(EIGHTHS[1:], "#"), "\u2423": "_"})
    return line.translate(blocks).encode(encoding, "replace").decode(encoding)


def _columns() -> int:
    return min(max(progress_bar.console().width, MIN_COLUMNS), MAX_COLUMNS)
