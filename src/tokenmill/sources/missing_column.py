"""Detect that a JSON Lines file lacks the text column, from all lines of a slice or the first lines of a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from tokenmill.errors import SourceError
from tokenmill.humanize import count
from tokenmill.sources.documents import SourceFile
from tokenmill.sources.file_start import BYTE_ORDER_MARK, read_sample
from tokenmill.sources.json_values import ValueLines, has_values
from tokenmill.sources.text_columns import has_path
from tokenmill.storage.untrusted.malformed import MalformedDataError

MAX_LISTED_KEYS = 50
WHITE_SPACE = b" \t\r\n"  # as defined by JSON


class NoColumn(SourceError):  # noqa: N818 - the name is written to logs
    """A source has no column of the given name; the message lists its columns."""

    may_succeed_elsewhere = False


class ColumnSearch:
    """Searches lines for some columns until one line has one of them. A column may be a path of keys."""

    def __init__(self, columns: tuple[str, ...], *, is_found: bool = False, through_lists: bool = True) -> None:
        self.is_found = is_found
        self._columns = columns
        self._through_lists = through_lists
        self._keys: dict[str, None] = {}
        self._lines = 0

    def add(self, lines: Iterable[bytes | bytearray]) -> None:
        """Search some more lines, each of which is an object."""
        for line in lines if not self.is_found else ():
            try:
                record = json.loads(line.decode("utf-8", "replace"), parse_int=float)
            except (ValueError, RecursionError):
                record = dict.fromkeys(self._columns)  # pyarrow may accept the line, so assume that it has the columns
            found = {self._has(record, name) for name in self._columns}
            self.is_found |= True in found
            if len(self._keys) < MAX_LISTED_KEYS:
                self._keys.update(dict.fromkeys(list(record)[:MAX_LISTED_KEYS]))
            self._lines += None not in found  # a line that may have the column shows nothing
            if self.is_found:
                return

    def _has(self, record: dict[str, Any], name: str) -> bool | None:
        try:
            return has_path(record, name, through_lists=self._through_lists)
        except RecursionError:  # lists nested a thousand deep
            return None

    def missing(self, file: SourceFile, *, is_all: bool) -> NoColumn | None:
        """The error that lists the columns, if there were lines and none of them has one of these."""
        if self.is_found or not self._lines:
            return None
        return NoColumn(
            f"no line of a source has the column {' or '.join(map(repr, self._columns))}",
            f"file         {file.path}",
            *([] if is_all else [f"looked at    the first {count(self._lines, 'line')}"]),
            f"columns      {', '.join(list(self._keys)[:MAX_LISTED_KEYS]) or 'none'}",
            "Name the column that holds the text: --column NAME.",
        )


def check_first_lines(file: SourceFile, *columns: str, through_lists: bool = True) -> tuple[bool, NoColumn | None]:
    """Whether one of the first lines of a JSON Lines file has one of the columns, and the error if all lack them.

    Returns (False, None) if no line is whole. Costs one short read. Damage is reported later, when the file is read.
    """
    data, is_all = read_sample(file)
    try:
        data = ValueLines().convert(data) if has_values(file) else data
    except MalformedDataError:
        return False, None
    lines = data.removeprefix(BYTE_ORDER_MARK).split(b"\n")
    search = ColumnSearch(columns, through_lists=through_lists)
    search.add(_objects(lines if is_all else lines[:-1]))
    return search.is_found, search.missing(file, is_all=is_all)


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
