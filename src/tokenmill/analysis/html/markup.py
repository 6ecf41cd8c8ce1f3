"""Building blocks of HTML. All data goes through `escape`, so that none of it can become markup or a script."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from tokenmill.analysis.visible_text import make_visible
from tokenmill.humanize import escape_control_characters, number

MAX_LABEL_CHARACTERS = 64
MAX_SENTENCE_CHARACTERS = 200


# A browser may fetch and run nothing for a page.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def page(title: str, command: str, path: str, body: str) -> str:
    """The page of a command as one HTML file. `path` is what the page is about."""
    style = resources.files("tokenmill.analysis.html").joinpath("style.css").read_text()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><meta name="referrer" content="no-referrer">'
        f"<title>{escape(title)} \u2013 tokenmill {command}</title>\n<style>\n{style}</style></head>\n"
        f'<body><main><header><p class="kicker">tokenmill {command}</p><h1><bdi>{escape(title)}</bdi></h1>'
        f'<p class="path"><bdi>{escape(path)}</bdi></p></header>\n{body}\n</main></body></html>\n'
    )


def escape(value: str) -> str:
    """Escape untrusted text."""
    return html.escape(escape_control_characters(value))


def keep_end(value: str, limit: int = MAX_LABEL_CHARACTERS) -> str:
    """The end of a long name, because paths differ there."""
    return value if len(value) <= limit else f"\u2026{value[-limit + 1 :]}"


def keep_start(value: str) -> str:
    """The beginning of a long sentence."""
    return value if len(value) <= MAX_SENTENCE_CHARACTERS else f"{value[: MAX_SENTENCE_CHARACTERS - 1]}\u2026"


def token_code(token_text: str) -> str:
    """The text of a token as code. <bdi> isolates its direction from the text around it."""
    return f'<code><bdi title="{escape(token_text)}">{escape(keep_end(make_visible(token_text), 24))}</bdi></code>'


def percent(part: float, whole: float) -> str:
    """A percentage. Only 0 is shown as 0 %, and only the whole as 100 %."""
    if not whole or not part:
        return "0 %" if whole else "\u2013"
    if part / whole < 0.001:
        return "< 0.1 %"
    return "> 99.9 %" if 0.9995 <= part / whole < 1 else f"{100 * part / whole:.1f} %"


def card(name: str, value: str, note: str = "") -> str:
    """A key figure."""
    unbroken = escape(note).replace(" %", "&nbsp;%").replace("&lt; ", "&lt;&nbsp;")
    below = f'<p class="note">{unbroken}</p>' if note else ""
    return f'<li><p class="name">{escape(name)}</p><p class="value">{escape(value)}</p>{below}</li>'


def card_list(cards: Iterable[str]) -> str:
    """Key figures, side by side."""
    return f'<ul class="cards">{"".join(cards)}</ul>'


def section(anchor: str, title: str, *content: str) -> str:
    """A section of the page."""
    return f'<section id="{anchor}"><h2>{escape(title)}</h2>{"".join(content)}</section>'


def lead(sentence: str) -> str:
    """The opening sentence of a section."""
    return f'<p class="lead">{escape(sentence)}</p>'


def table(headings: Sequence[str], rows: Iterable[Sequence[str]], text_columns: int = 1) -> str:
    """A table. Cells are ready markup. The first `text_columns` columns are text, the others numbers."""
    classes = ["" if column < text_columns else ' class="number"' for column in range(len(headings))]
    head = "".join(f'<th scope="col"{kind}>{escape(name)}</th>' for kind, name in zip(classes, headings, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{kind}>{cell}</td>" for kind, cell in zip(classes, row, strict=True)) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def definitions(pairs: Iterable[tuple[str, str]]) -> str:
    """A list of names and their values. Values are ready markup."""
    return f'<dl class="facts">{"".join(f"<dt>{escape(name)}</dt><dd>{value}</dd>" for name, value in pairs)}</dl>'


@dataclass(frozen=True, slots=True)
class BarRow:
    """A bar of a bar table. `label` is ready markup, `title` the full name as a tooltip."""

    label: str
    title: str
    value: float
    figures: tuple[str, ...]
    is_rest: bool = False


def bar_table(label_heading: str, headings: Sequence[str], rows: Sequence[BarRow]) -> str:
    """A table with a horizontal bar in each row. Bars grow with the page, text does not."""
    longest = max((row.value for row in rows if not row.is_rest), default=0) or 1
    head = "".join(f'<th scope="col" class="number">{escape(name)}</th>' for name in headings)
    body = "".join(_bar(row, longest, headings) for row in rows)
    columns = f'<thead><tr><th scope="col">{escape(label_heading)}</th><th></th>{head}</tr></thead>'
    return f'<table class="bars">{columns}<tbody>{body}</tbody></table>'


def _bar(row: BarRow, longest: float, headings: Sequence[str]) -> str:
    """A row. Each figure carries its name, because a narrow page has no columns."""
    width = min(100 * row.value / longest, 100)
    kind = "bar rest beyond" if row.value > longest else "bar rest" if row.is_rest else "bar"
    line = f'<div class="{kind}" style="width:{width:.2f}%"></div>' if width else ""
    cells = "".join(
        f'<td class="number" data-name="{escape(name) if name != "share" else ""}">{escape(figure)}</td>'
        for name, figure in zip(headings, row.figures, strict=True)
    )
    name = f'<th scope="row" title="{escape(row.title)}">{row.label}</th>'
    return f'<tr>{name}<td class="track">{line}</td>{cells}</tr>'


def short_number(value: float) -> str:
    """A count for an axis: 2.5, 500, 1.5k, 20M."""
    if value < 999.5:
        return f"{round(value, 2):g}"
    written = number(value)
    digits = written.rstrip("kMGT")
    return f"{float(digits):g}{written[len(digits) :]}"
