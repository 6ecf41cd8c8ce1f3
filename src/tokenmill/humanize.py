"""Format counts, sizes, durations and signals for users, and parse sizes."""

from __future__ import annotations

import signal
import textwrap

# The column at which values begin in lines that have a label.
LABEL_COLUMNS = 13

# The start of a notice.
NOTE = "note: "


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


def _three(value: float) -> str:
    """Three significant digits, without exponent."""
    decimals = 2 if abs(value) < 9.995 else 1 if abs(value) < 99.95 else 0
    return f"{value:.{decimals}f}"
