"""The border between tokenmill and the terminal: everything that people read is printed here.

Text may hold file names, column values and documents. Characters that a terminal obeys are escaped here, once, so that
no caller has to think of it. The standard streams are made such that a closed one loses text, and never the work.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from dataclasses import dataclass, field
from typing import IO, Any

from tokenmill.humanize import escape_control_characters

STDOUT, STDERR = 1, 2
READER_GONE = frozenset({errno.EPIPE, errno.EBADF, errno.EIO})
"""What the system says when nothing reads a stream any more: the pipe, the descriptor or the terminal is gone."""


@dataclass(frozen=True, slots=True)
class Styled:
    """Text in a style, as click.style takes it."""

    text: str
    style: dict[str, Any] = field(default_factory=dict)


def printable(text: str) -> str:
    """Text of several lines without any character that a terminal obeys, line ends and tabs aside."""
    if text.isprintable():
        return text
    return "".join(character if character in "\n\t" else escape_control_characters(character) for character in text)


def echo(*spans: str | Styled, err: bool = False, nl: bool = True) -> None:
    """Print text; colours are left out where the stream is no terminal."""
    import click  # noqa: PLC0415 - not for callers of the library

    shown = (printable(it) if isinstance(it, str) else click.style(printable(it.text), **it.style) for it in spans)
    click.echo("".join(shown), err=err, nl=nl)


def echo_json(record: Any) -> None:
    """Print a record as one line of JSON; what is not printable in it is escaped."""
    import click  # noqa: PLC0415
    import msgspec  # noqa: PLC0415

    click.echo(escaped_json(msgspec.json.encode(record).decode()))


def escaped_json(text: str) -> str:
    """The same JSON, with an escape for each character that is not printable: those are inside strings."""
    if text.isprintable():
        return text
    return "".join(character if character.isprintable() else _json_escape(character) for character in text)


def _json_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4))


def line(message: str) -> None:
    """Print one line on stderr at once: a line end inside it is escaped, so that it cannot pass for another line."""
    print(escape_control_characters(message), file=sys.stderr, flush=True)  # noqa: T201 - this is the place that prints


def replace_line(text: str) -> None:
    """Print a line on stderr that replaces the last one on a terminal."""
    before, after = ("\r\x1b[K", "") if sys.stderr.isatty() else ("", "\n")
    print(f"{before}{escape_control_characters(text)}", file=sys.stderr, end=after)  # noqa: T201


def open_streams() -> None:
    """Make the standard streams of this process usable, whatever they were started with.

    A descriptor that is closed is opened on /dev/null: otherwise the next file, which may be a part, would take its
    number. A stream that nothing reads any more swallows what is printed.
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
    sys.stdout = _enduring(sys.stdout, STDOUT)
    sys.stderr = _enduring(sys.stderr, STDERR)


def _enduring(stream: IO[str] | None, descriptor: int) -> IO[str]:
    if stream is None:  # it was closed before Python started
        return open(os.devnull, "w", encoding="utf-8")
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    stream.flush()
    return io.TextIOWrapper(
        io.BufferedWriter(_EnduringFile(descriptor, "wb", closefd=False)),
        encoding=stream.encoding,
        errors="backslashreplace",  # whatever a document holds can be shown, in any encoding
        line_buffering=stream.line_buffering,
    )


class _EnduringFile(io.FileIO):
    """A standard stream. Nothing that happens to stderr is worth the work; of stdout, what could not be written is.

    A failure is raised once: what is still buffered then is dropped, not tried again at the end of the process.
    """

    _has_failed = False

    def write(self, data: Any) -> int:
        """Write, or drop the data if the stream is of no use any more."""
        if not self._has_failed:
            try:
                return super().write(data)
            except OSError as error:
                self._has_failed = True
                if self.fileno() == STDOUT and error.errno not in READER_GONE:
                    raise
        return len(memoryview(data).cast("B"))
