"""A column that is not there: told by the lines of a JSON Lines file, all of a slice or the first ones of a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa

from tokenmill import storage
from tokenmill.errors import SourceError
from tokenmill.humanize import count
from tokenmill.sources.delimited import codec_of
from tokenmill.sources.documents import SourceFile

LOOK_BYTES = 256 << 10
"""How much of a file is read to see whether it has the column, before anything is planned."""

MAX_NAMED = 50
WHITE_SPACE = b" \t\r\n"  # what JSON calls so
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class NoColumn(SourceError):
    """A source has no column of the name that was given; the message names those it has."""

    may_succeed_elsewhere = False


class ColumnSearch:
    """Looks for the column in lines, until one has it."""

    def __init__(self, column: str, *, is_over: bool = False) -> None:
        self.is_over = is_over
        self._column = column
        self._keys: dict[str, None] = {}
        self._lines = 0

    def look(self, lines: Iterable[bytes | bytearray]) -> None:
        """Take some more lines, each of which is an object."""
        for line in lines if not self.is_over else ():
            try:
                record = json.loads(line.decode("utf-8", "replace"), parse_int=float)
            except (ValueError, RecursionError):
                record = {self._column: None}  # pyarrow may take the line, but which keys it has cannot be told
            self.is_over |= self._column in record
            self._keys.update(dict.fromkeys(list(record)[:MAX_NAMED]) if len(self._keys) < MAX_NAMED else {})
            self._lines += 1
            if self.is_over:
                return

    def missing(self, file: SourceFile, *, is_all: bool) -> NoColumn | None:
        """The error that tells which columns there are, if there were lines and none had this one."""
        if self.is_over or not self._lines:
            return None
        return NoColumn(
            f"no line of a source has the column {self._column!r}",
            f"file         {file.path}",
            *([] if is_all else [f"looked at    the first {count(self._lines, 'line')}"]),
            f"columns      {', '.join(list(self._keys)[:MAX_NAMED]) or 'none'}",
            "Name the column that holds the text: --column NAME.",
        )


def look_ahead(file: SourceFile, column: str) -> tuple[bool, NoColumn | None]:
    """Whether one of the first lines of a JSON Lines file has the column, and what is wrong if all of them lack it.

    Neither, if no line is whole. It costs one short read, and what is damaged is told when the file's turn comes.
    """
    data = storage.read_start(file.info, LOOK_BYTES)
    is_all = len(data) == file.size
    codec = codec_of(file.path)
    if codec:
        data, is_end = _decompressed(data, codec)
        is_all &= is_end
    lines = data.removeprefix(BYTE_ORDER_MARK).split(b"\n")
    search = ColumnSearch(column)
    search.look(_objects(lines if is_all else lines[:-1]))
    return search.is_over, search.missing(file, is_all=is_all)


def _decompressed(data: bytes, codec: str) -> tuple[bytes, bool]:
    """As much of the content as the start of a compressed file gives, and whether that is where it ends."""
    content = b""
    try:
        with pa.CompressedInputStream(pa.BufferReader(data), codec) as stream:
            while len(content) < LOOK_BYTES:
                more = stream.read(1 << 14)
                if not more:
                    return content, True
                content += more
    except OSError:  # it goes on after our data, or is damaged
        return content, False
    return content, False


def _objects(lines: list[bytes]) -> Iterator[bytes]:
    """Those lines that look like an object; the others are bad rows, or blank."""
    for line in lines:
        stripped = line.strip(WHITE_SPACE)
        if stripped[:1] == b"{" and stripped[-1:] == b"}":
            yield stripped


def found_elsewhere(error: NoColumn, other: SourceFile) -> NoColumn:
    """The same error, where another source has the column."""
    return NoColumn(
        error.headline,
        *error.details[:-1],
        f"has it       {other.path} ({other.kind})",
        "Sources with their text in different columns go into stores of their own: prepare each with its --column.",
    )
