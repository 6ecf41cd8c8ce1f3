"""Format counts, sizes, durations and signals for users, and parse sizes."""

from __future__ import annotations

import signal
import textwrap

from tokenmill.errors import UsageError

# The column at which values begin in lines that have a label.
LABEL_COLUMNS = 13


def count(value: int, what: str) -> str:
    """A count with its noun: 1 file, 2 files, 1,000 units."""
    return f"{value:,} {what}{'s' * (value != 1)}"


def number(value: float) -> str:
    """A count in three digits: 950, 12.3k, 4.56M, 15.0T."""
    for suffix in ("", "k", "M", "G"):
        if abs(value) < 999.5:
            return f"{value:.0f}" if not suffix else f"{_three(value)}{suffix}"
        value /= 1000
    return f"{_three(value)}T"


def size(count: float) -> str:
    """Bytes: 812 B, 34.5 MB, 1.21 TB."""
    for suffix in ("B", "kB", "MB", "GB"):
        if abs(count) < 999.5:
            return f"{count:.0f} B" if suffix == "B" else f"{_three(count)} {suffix}"
        count /= 1000
    return f"{_three(count)} TB"


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
    """Wrap a line between words. Text that follows a label is indented to the label's width."""
    label = line[:LABEL_COLUMNS] if "  " in line[:LABEL_COLUMNS] else ""
    width = max(columns - len(label), LABEL_COLUMNS)
    lines = textwrap.wrap(line[len(label) :], width, break_long_words=False, break_on_hyphens=False)
    return label + f"\n{' ' * len(label)}".join(lines)


def signal_name(value: int) -> str:
    """The name of a signal, such as SIGKILL, or its number if it has no name."""
    try:
        return signal.Signals(value).name
    except ValueError:
        return f"signal {value}"


def _three(value: float) -> str:
    """Three significant digits, without exponent."""
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f}"


_SUFFIXES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "b": 10**9}


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
        raise UsageError(f"{text!r} is not a size", "It has to be a finite number that is not negative.")
    return round(value)
