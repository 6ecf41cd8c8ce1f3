"""Detect that a JSON Lines file lacks the text column, from all lines of a slice or the first lines of a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.humanize import count
from tokenmill.sources.delimited import codec_of
from tokenmill.sources.documents import SourceFile

# How much of a file is read before planning, to check whether it has the column.
SAMPLE_BYTES = 256 << 10
MAX_LISTED_KEYS = 50
WHITE_SPACE = b" \t\r\n"  # as defined by JSON
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class NoColumn(SourceError):  # noqa: N818 - the name is written to logs
    """A source has no column of the given name; the message lists its columns."""

    may_succeed_elsewhere = False


class ColumnSearch:
    """Searches lines for the column until one line has it."""

    def __init__(self, column: str, *, is_found: bool = False) -> None:
        self.is_found = is_found
        self._column = column
        self._keys: dict[str, None] = {}
        self._lines = 0

    def add(self, lines: Iterable[bytes | bytearray]) -> None:
        """Search some more lines, each of which is an object."""
        for line in lines if not self.is_found else ():
            try:
                record = json.loads(line.decode("utf-8", "replace"), parse_int=float)
            except (ValueError, RecursionError):
                record = {self._column: None}  # pyarrow may accept the line, so assume that it has the column
            self.is_found |= self._column in record
            if len(self._keys) < MAX_LISTED_KEYS:
                self._keys.update(dict.fromkeys(list(record)[:MAX_LISTED_KEYS]))
            self._lines += 1
            if self.is_found:
                return

    def missing(self, file: SourceFile, *, is_all: bool) -> NoColumn | None:
        """The error that lists the columns, if there were lines and none of them has this column."""
        if self.is_found or not self._lines:
            return None
        return NoColumn(
            f"no line of a source has the column {self._column!r}",
            f"file         {file.path}",
            *([] if is_all else [f"looked at    the first {count(self._lines, 'line')}"]),
            f"columns      {', '.join(list(self._keys)[:MAX_LISTED_KEYS]) or 'none'}",
            "Name the column that holds the text: --column NAME.",
        )


def check_first_lines(file: SourceFile, column: str) -> tuple[bool, NoColumn | None]:
    """Whether one of the first lines of a JSON Lines file has the column, and the error if all of them lack it.

    Returns (False, None) if no line is whole. Costs one short read. Damage is reported later, when the file is read.
    """
    data = storage.read_start(file.info, SAMPLE_BYTES)
    is_all = len(data) == file.size
    codec = codec_of(file.path)
    if codec:
        data, is_end = _decompress_start(data, codec)
        is_all &= is_end
    lines = data.removeprefix(BYTE_ORDER_MARK).split(b"\n")
    search = ColumnSearch(column)
    search.add(_objects(lines if is_all else lines[:-1]))
    return search.is_found, search.missing(file, is_all=is_all)


def _decompress_start(data: bytes, codec: str) -> tuple[bytes, bool]:
    """The content at the start of a compressed file, and whether that is all of it."""
    content = b""
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            while len(content) < SAMPLE_BYTES:
                more = stream.read(1 << 14)
                if not more:
                    return content, True
                content += more
    except OSError:  # the stream continues after the sample, or is damaged
        return content, False
    return content, False


def _objects(lines: list[bytes]) -> Iterator[bytes]:
    """The lines that look like an object; the others are bad rows or blank."""
    for line in lines:
        stripped = line.strip(WHITE_SPACE)
        if stripped[:1] == b"{" and stripped[-1:] == b"}":
            yield stripped


def with_other_source(error: NoColumn, other: SourceFile) -> NoColumn:
    """The same error, with a note that another source has the column."""
    return NoColumn(
        error.headline,
        *error.details[:-1],
        f"has it       {other.path} ({other.kind})",
        "Sources with their text in different columns go into stores of their own: prepare each with its --column.",
    )
