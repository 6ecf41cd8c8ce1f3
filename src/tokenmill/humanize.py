"""Counts, sizes, durations, signals and records as users read them, and sizes and fractions as they write them."""

from __future__ import annotations

import difflib
import signal
import textwrap
from collections.abc import Iterable, Mapping, Sized
from decimal import Decimal

from tokenmill.errors import UsageError

# The column at which values begin in lines that have a label.
LABEL_COLUMNS = 13

# A record whose repr is longer has a line for each field.
REPR_COLUMNS = 100

# How many items of a list, a mapping or an array are shown.
SHOWN_ITEMS = 10

# Notebooks align the cells of tables to the right.
_LEFT = 'style="text-align: left; vertical-align: top"'

# How alike a name and a mistyped one are, from 0 to 1.
MIN_SIMILARITY = 0.65

# The start of a notice.
NOTE = "note: "

# What the suffix of a size stands for.
_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "b": 10**9}


def count(value: int, what: str) -> str:
    """A count with its noun: 1 file, 2 files, 1,000 units."""
    return f"{value:,} {what}{'s' * (value != 1)}"


def did_you_mean(word: str, names: Iterable[str], most: int = 1) -> list[str]:
    """A line for an error message with the names that are most like a word, in any case; empty if none is."""
    similar = most_similar(word, names, most)
    return [f"Did you mean {' or '.join(similar)}?"] if similar else []


def most_similar(word: str, names: Iterable[str], most: int = 1) -> list[str]:
    """The names that are most like a word, in any case, the most similar one first."""
    by_lower = {name.lower(): name for name in names}
    return [by_lower[match] for match in difflib.get_close_matches(word.lower(), by_lower, most, MIN_SIMILARITY)]


def number(value: float) -> str:
    """A count in three digits: 950, 12.3k, 4.56M, 15.0T."""
    digits, suffix = _scaled(value)
    return f"{digits}{suffix}"


def size(count: float) -> str:
    """Bytes: 812 B, 34.5 MB, 1.21 TB."""
    digits, suffix = _scaled(count)
    return f"{digits} {suffix}B"


def duration(seconds: float) -> str:
    """A time: 0.8 s, 45 s, 3 min, 2.5 h, 12.1 days."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def escape_control_characters(text: str) -> str:
    """Escape control characters of untrusted text, so that a terminal does not interpret them."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in text)


def wrap(line: str, columns: int) -> str:
    """Wrap a line between words. The next lines are indented as the first one, and to the width of its label."""
    if len(line) <= columns:
        return line
    indent = len(line) - len(line.lstrip(" "))
    label_end = indent + LABEL_COLUMNS
    start = label_end if "  " in line[indent:label_end] else indent + len(NOTE) * line.startswith(NOTE, indent)
    width = max(columns - start, LABEL_COLUMNS)
    lines = textwrap.wrap(line[start:], width, break_long_words=False, break_on_hyphens=False)
    return line[:start] + f"\n{' ' * start}".join(lines)


def signal_name(value: int) -> str:
    """The name of a signal, such as SIGKILL, or its number if it has no name."""
    try:
        return signal.Signals(value).name
    except ValueError:
        return f"signal {value}"


def _scaled(value: float) -> tuple[str, str]:
    """A number in three digits, and the suffix of its unit."""
    for suffix in ("", "k", "M", "G"):
        if abs(value) < 999.5:
            return _three(value) if suffix else f"{value:.0f}", suffix
        value /= 1000
    return _three(value), "T"


def _three(value: float) -> str:
    """Three significant digits, without exponent."""
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f}"


class Readable:
    """Gives a record a repr that has a line for each field, and a table of its fields in a notebook."""

    __slots__ = ()

    def __repr__(self) -> str:
        return _code(self, "")

    def _repr_html_(self) -> str:
        return html_table(type(self).__name__, _shown(self))


def html_table(title: str, rows: Mapping[str, object]) -> str:
    """A table with a row for each name and its value. All text is escaped."""
    return f"<div><strong>{escape_html(title)}</strong>{_rows(rows)}</div>"


def escape_html(text: str) -> str:
    """Untrusted text as HTML: without markup and without control characters."""
    import html  # noqa: PLC0415 - loads a large table, for notebooks only

    return html.escape(escape_control_characters(text))


def _fields(record: object) -> dict[str, object]:
    kind = "__struct_fields__" if hasattr(record, "__struct_fields__") else "__dataclass_fields__"
    names: Iterable[str] = getattr(record, kind)
    return {name: getattr(record, name) for name in names}


def _shown(record: object) -> dict[str, object]:
    return {name: value for name, value in _fields(record).items() if not _is_empty(value)}


def _is_empty(value: object) -> bool:
    """Whether a value says nothing in a table: None, an empty text or list, or a record without anything in it."""
    if isinstance(value, Readable):
        return all(_is_empty(item) or item == 0 for item in _fields(value).values())
    return value is None or (isinstance(value, str | Mapping | list | tuple) and not value)


def _code(value: object, indent: str) -> str:
    """A value as Python code: on one line if it fits, else a line for each item. Long lists are cut."""
    if isinstance(value, Readable):
        items = [(f"{name}=", content) for name, content in _fields(value).items()]
        opening, closing = f"{type(value).__name__}(", ")"
    elif isinstance(value, Mapping):
        items, opening, closing = [(f"{key!r}: ", content) for key, content in value.items()], "{", "}"
    elif isinstance(value, list):
        items, opening, closing = [("", content) for content in value], "[", "]"
    else:
        return _array(value) or repr(value)
    inner = f"{indent}    "
    limit = len(items) if isinstance(value, Readable) else SHOWN_ITEMS
    texts = [f"{name}{_code(content, inner)}" for name, content in items[:limit]]
    texts += [f"... {len(items) - limit:,} more"] if len(items) > limit else []
    line = f"{opening}{', '.join(texts)}{closing}"
    if len(indent) + len(line) <= REPR_COLUMNS and "\n" not in line:
        return line
    return "".join([f"{opening}\n", *(f"{inner}{text},\n" for text in texts), f"{indent}{closing}"])


def _array(value: object) -> str:
    """The first items of a NumPy array, its length and type; empty for any other value."""
    if not (hasattr(value, "dtype") and hasattr(value, "tolist") and getattr(value, "ndim", 0) == 1):
        return ""
    shown = ", ".join(map(str, value[:SHOWN_ITEMS].tolist()))  # type: ignore[index]
    length = len(value)  # type: ignore[arg-type]
    return f"<{length:,} {value.dtype}: {shown}{', ...' if length > SHOWN_ITEMS else ''}>"


def _rows(rows: Mapping[str, object]) -> str:
    cells = (f"<tr><th {_LEFT}>{escape_html(str(name))}</th><td {_LEFT}>{_cell(rows[name])}</td></tr>" for name in rows)
    return f"<table>{''.join(cells)}</table>"


def _cell(value: object) -> str:
    """A value as HTML: a record or a mapping is a table, a list has a line for each item."""
    if isinstance(value, Readable):
        return _rows(_fields(value))
    if isinstance(value, Mapping):
        shown = dict(list(value.items())[:SHOWN_ITEMS])
        return (_rows(shown) + _more(value)) if value else ""
    if isinstance(value, list):
        shown_items = value[:SHOWN_ITEMS]
        if value and all(isinstance(item, Readable) for item in value):
            return _records(shown_items) + _more(value)
        return "<br>".join(map(_cell, shown_items)) + _more(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return escape_html(_array(value) or str(value))


def _records(records: list[Readable]) -> str:
    """One table of several records of a class: a column for each field."""
    head = "".join(f"<th {_LEFT}>{escape_html(name)}</th>" for name in _fields(records[0]))
    lines = ("".join(f"<td {_LEFT}>{_cell(value)}</td>" for value in _fields(record).values()) for record in records)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _more(items: Sized) -> str:
    return f"<br>... {len(items) - SHOWN_ITEMS:,} more" if len(items) > SHOWN_ITEMS else ""


def parse_size(text: str | int) -> int:
    """A number with an optional suffix: `100M`, `8GB`, `64MiB`, `10B` (billion), `1.5k`."""
    if isinstance(text, int):
        return text
    number = text.strip().lower()
    binary = number.endswith("ib")
    if binary:
        number = number[:-2]
    elif len(number) > 1 and number.endswith("b") and number[-2] in _SUFFIXES:
        number = number[:-1]
    scale = 1
    if number and number[-1] in _SUFFIXES:
        scale = 1 << {"k": 10, "m": 20, "g": 30, "t": 40}.get(number[-1], 0) if binary else _SUFFIXES[number[-1]]
        number = number[:-1]
    try:
        value = float(number) * scale
    except ValueError:
        raise UsageError(f"{text!r} is not a size", "Write a number, or one with k, M, G, T or B: 100M, 8GB.") from None
    if not 0 <= value < float("inf"):
        raise UsageError(f"{text!r} is not a size", "A size is a finite number that is not negative.")
    return round(value)


def parse_fraction(text: str) -> float | None:
    """Parse a number or a percentage; None if it is neither. Decimal arithmetic makes 1% and 0.01 the same number."""
    try:
        return float(Decimal(text.strip().removesuffix("%")) / (100 if text.strip().endswith("%") else 1))
    except (ArithmeticError, ValueError):
        return None
