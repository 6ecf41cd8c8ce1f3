"""Pieces of HTML. Whatever comes from data goes through `text`: nothing in it can become markup or do anything."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tokenmill.analysis.visible_text import visible
from tokenmill.humanize import escape_control_characters, number

LONGEST_LABEL = 64
LONGEST_SENTENCE = 200


def text(value: str) -> str:
    """Text that somebody else chose."""
    return html.escape(escape_control_characters(value))


def shortened(value: str, most: int = LONGEST_LABEL) -> str:
    """The end of a long name: of paths, that is what tells them apart."""
    return value if len(value) <= most else f"\u2026{value[-most + 1 :]}"


def beginning(value: str) -> str:
    """The beginning of a sentence that somebody else wrote."""
    return value if len(value) <= LONGEST_SENTENCE else f"{value[: LONGEST_SENTENCE - 1]}\u2026"


def code(piece: str) -> str:
    """A piece of text that a token stands for; its direction is its own business."""
    return f'<code><bdi title="{text(piece)}">{text(shortened(visible(piece), 24))}</bdi></code>'


def share(part: float, whole: float) -> str:
    """A share in per cent; what is tiny is not called nothing, and what lacks something is not called all."""
    if not whole or not part:
        return "0 %" if whole else "\u2013"
    if part / whole < 0.001:
        return "< 0.1 %"
    return "> 99.9 %" if 0.9995 <= part / whole < 1 else f"{100 * part / whole:.1f} %"


def card(name: str, value: str, note: str = "") -> str:
    """A key figure."""
    kept = text(note).replace(" %", "&nbsp;%").replace("&lt; ", "&lt;&nbsp;")
    below = f'<p class="note">{kept}</p>' if note else ""
    return f'<li><p class="name">{text(name)}</p><p class="value">{text(value)}</p>{below}</li>'


def cards(found: Iterable[str]) -> str:
    """Key figures, side by side."""
    return f'<ul class="cards">{"".join(found)}</ul>'


def section(anchor: str, title: str, *content: str) -> str:
    """A part of the page."""
    return f'<section id="{anchor}"><h2>{text(title)}</h2>{"".join(content)}</section>'


def lead(sentence: str) -> str:
    """A sentence that says what is to be seen."""
    return f'<p class="lead">{text(sentence)}</p>'


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], words: int = 1) -> str:
    """A table of ready markup whose first columns are words, and whose other columns are numbers."""
    marks = ["" if place < words else ' class="number"' for place in range(len(heads))]
    head = "".join(f'<th scope="col"{mark}>{text(name)}</th>' for mark, name in zip(marks, heads, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{mark}>{cell}</td>" for mark, cell in zip(marks, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def folded(summary: str, content: str) -> str:
    """Something that is shown when it is asked for."""
    return f"<details><summary>{text(summary)}</summary>{content}</details>"


def facts(found: Iterable[tuple[str, str]]) -> str:
    """Names and ready markup."""
    return f'<dl class="facts">{"".join(f"<dt>{text(name)}</dt><dd>{value}</dd>" for name, value in found)}</dl>'


@dataclass(frozen=True, slots=True)
class BarRow:
    """A bar with its name (ready markup, and in full for who points at it), its length and figures beside it."""

    label: str
    title: str
    value: float
    figures: tuple[str, ...]
    is_rest: bool = False


def bars(what: str, heads: Sequence[str], found: Sequence[BarRow]) -> str:
    """Bars that lie one below the other, the first column of a table; they grow with the page, their words do not."""
    most = max((bar.value for bar in found if not bar.is_rest), default=0) or 1
    head = "".join(f'<th scope="col" class="number">{text(name)}</th>' for name in heads)
    body = "".join(_bar(bar, most, heads) for bar in found)
    columns = f'<thead><tr><th scope="col">{text(what)}</th><th></th>{head}</tr></thead>'
    return f'<table class="bars">{columns}<tbody>{body}</tbody></table>'


def _bar(bar: BarRow, most: float, heads: Sequence[str]) -> str:
    """A row; each figure carries its name, because a narrow page has no room for columns."""
    width = min(100 * bar.value / most, 100)
    kind = "bar rest beyond" if bar.value > most else "bar rest" if bar.is_rest else "bar"
    line = f'<div class="{kind}" style="width:{width:.2f}%"></div>' if width else ""
    cells = "".join(
        f'<td class="number" data-name="{text(name) if name != "share" else ""}">{text(figure)}</td>'
        for name, figure in zip(heads, bar.figures, strict=True)
    )
    name = f'<th scope="row" title="{text(bar.title)}">{bar.label}</th>'
    return f'<tr>{name}<td class="track">{line}</td>{cells}</tr>'


def short(value: float) -> str:
    """A count as an axis has it: 2.5, 500, 1.5k, 20M."""
    if value < 999.5:
        return f"{round(value, 2):g}"
    word = number(value)
    digits = word.rstrip("kMGT")
    return f"{float(digits):g}{word[len(digits) :]}"
