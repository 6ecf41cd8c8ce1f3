"""Print to the terminal. Everything that users read is printed here.

Text may contain file names, column values and documents, so control characters are escaped here. A standard stream that
is closed loses text, but does not end the work.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import sys
from dataclasses import dataclass, field
from typing import IO, Any

from tokenmill.humanize import escape_control_characters

STDOUT, STDERR = 1, 2
CLEAR_LINE = "\r\x1b[K"
READER_GONE = frozenset({errno.EPIPE, errno.EBADF, errno.EIO})  # the pipe, the descriptor or the terminal is closed


# Whether the last line of the terminal is a status that the next text replaces.
_shows_status = False


@dataclass(frozen=True, slots=True)
class Styled:
    """Text with the keyword arguments of click.style."""

    text: str
    style: dict[str, Any] = field(default_factory=dict)


def printable(text: str) -> str:
    """Text with its control characters escaped, except line ends and tabs."""
    if text.isprintable():
        return text
    return "".join(character if character in "\n\t" else escape_control_characters(character) for character in text)


def echo(*spans: str | Styled, err: bool = False, nl: bool = True) -> None:
    """Print text, without colors if the stream is not a terminal or the user wants none (NO_COLOR)."""
    import click  # noqa: PLC0415 - not for callers of the library

    clear_status()
    texts = [
        printable(span) if isinstance(span, str) else click.style(printable(span.text), **span.style) for span in spans
    ]
    click.echo("".join(texts), err=err, nl=nl, color=False if os.environ.get("NO_COLOR") else None)


def echo_json(record: Any) -> None:
    """Print a record as one line of JSON, with escapes for what is not printable."""
    import click  # noqa: PLC0415
    import msgspec  # noqa: PLC0415

    clear_status()
    click.echo(escaped_json(msgspec.json.encode(record).decode()))


def escaped_json(text: str) -> str:
    """The same JSON with an escape for each character that is not printable. Such characters are inside strings."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _json_escape(character) for character in text)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def line(message: str) -> None:
    """Print one line on stderr at once. A line end inside it is escaped, so that it cannot imitate another line."""
    clear_status()
    print(escape_control_characters(message), file=sys.stderr, flush=True)  # noqa: T201 - this module prints


def replace_line(text: str) -> None:
    """Print a line on stderr. On a terminal it replaces the last one, and is cut off at the edge."""
    shown = escape_control_characters(text)
    if sys.stderr.isatty():
        columns = shutil.get_terminal_size().columns - 1
        print(f"{CLEAR_LINE}{shown[:columns]}", file=sys.stderr, end="", flush=True)  # noqa: T201
    else:
        print(shown, file=sys.stderr)  # noqa: T201


def replace_in_cell(text: str, columns: int, end: str) -> None:
    """Print a line in the output of a notebook's cell, over the last one, which had so many columns."""
    print(f"\r{escape_control_characters(text):{columns}}", end=end, flush=True)  # noqa: T201


def show_status(text: str) -> None:
    """Show a line on a terminal until the next text is printed. Elsewhere it is not shown."""
    global _shows_status  # noqa: PLW0603 - there is one terminal
    if sys.stderr.isatty():
        replace_line(text)
        _shows_status = True


def clear_status() -> None:
    """Remove the line of `show_status`."""
    global _shows_status  # noqa: PLW0603 - there is one terminal
    if _shows_status:
        _shows_status = False
        print(CLEAR_LINE, file=sys.stderr, end="", flush=True)  # noqa: T201


def open_streams() -> None:
    """Make the standard streams of this process usable, however it was started.

    A closed descriptor is opened on /dev/null: otherwise the next file, perhaps a part, would get its number. A stream
    without a reader drops what is printed.
    """
    for descriptor in (0, STDOUT, STDERR):
        with contextlib.suppress(OSError):
            os.fstat(descriptor)
            continue
        opened = os.open(os.devnull, os.O_RDWR)
        if opened != descriptor:
            os.dup2(opened, descriptor)
            os.close(opened)
        os.set_inheritable(descriptor, True)
    sys.stdout = _tolerant(sys.stdout, STDOUT)
    sys.stderr = _tolerant(sys.stderr, STDERR)


def _tolerant(stream: IO[str] | None, descriptor: int) -> IO[str]:
    if stream is None:  # it was closed before Python started
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_TolerantFile(descriptor, "wb", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",  # any character of a document can be shown in any encoding
        line_buffering=stream.line_buffering,
    )


class _TolerantFile(io.FileIO):
    """A standard stream. An error of stderr is ignored; an error of stdout is raised, unless the reader is gone.

    It is raised once: what is still buffered is dropped, and not written again at the end of the process.
    """

    _has_failed = False

    def write(self, data: Any) -> int:
        """Write, or drop the data if an earlier write failed."""
        if not self._has_failed:
            try:
                return super().write(data)
            except OSError as error:
                self._has_failed = True
                if self.fileno() == STDOUT and error.errno not in READER_GONE:
                    raise
        return len(memoryview(data).cast("B"))
