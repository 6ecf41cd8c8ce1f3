"""Find out before any work whether JSON Lines have the columns that a run needs.

A line may lack a column, so only a search in many lines of all files shows that it has another name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa

from tokenmill.errors import SourceError
from tokenmill.humanize import count, did_you_mean
from tokenmill.sources.delimited import BYTE_ORDER_MARK, open_stream, read_sample
from tokenmill.sources.documents import SourceFile
from tokenmill.sources.json_values import ValueLines, ValueStream, has_values
from tokenmill.sources.text_columns import has_path, is_conversation, refuse_conversation
from tokenmill.storage.untrusted.malformed import MalformedDataError

MAX_LISTED_KEYS = 50
OTHER_COLUMN = (
    "Name the column that holds the text: --column NAME, or {NAME} in a --template. For conversations: --messages NAME."
)
WHITE_SPACE = b" \t\r\n"  # as defined by JSON
# How much of all files together is searched for a column that none of their first lines has.
SEARCH_BYTES = 64 << 20
CHUNK_BYTES = 1 << 20
# After so many lines, only a line that may have the column is parsed.
MAX_PARSED_LINES = 1000


class NoColumn(SourceError):  # noqa: N818 - the name is written to logs
    """A source has no column of the given name; the message lists its columns."""

    may_succeed_elsewhere = False


def key_spellings(name: str) -> tuple[str, ...]:
    """Texts one of which is in every line of JSON that has a key, or the first key of a path."""
    keys = dict.fromkeys((name, name.split(".", maxsplit=1)[0]))
    escape = "\\u" if re.fullmatch(r"[\w .:-]*", name) else "\\"
    return (*(json.dumps(key, ensure_ascii=False) for key in keys), escape)


class ColumnSearch:
    """Searches lines for some columns until one line has one of them. A column may be a path of keys."""

    def __init__(self, columns: tuple[str, ...], *, through_lists: bool = True) -> None:
        self.is_found = False
        self._columns = columns
        self._spellings = [text.encode() for name in columns for text in key_spellings(name)]
        self._through_lists = through_lists
        self._keys: dict[str, None] = {}
        self._lines = 0

    def add(self, lines: Iterable[bytes]) -> None:
        """Search some more lines. Blank lines, and those that do not look like an object, are not counted."""
        for line in (line.strip(WHITE_SPACE) for line in lines):
            if self.is_found:
                return
            if line[:1] != b"{" or line[-1:] != b"}":
                continue
            if self._lines < MAX_PARSED_LINES or any(spelling in line for spelling in self._spellings):
                self._parse(line)
            else:
                self._lines += 1

    def _parse(self, line: bytes) -> None:
        try:
            record = json.loads(line.decode("utf-8", "replace"), parse_int=float)
        except (ValueError, RecursionError):
            record = dict.fromkeys(self._columns)  # pyarrow may accept the line, so assume that it has the columns
        found = {self._has(record, name) for name in self._columns}
        self.is_found |= True in found
        if len(self._keys) < MAX_LISTED_KEYS:
            self._keys.update(dict.fromkeys(list(record)[:MAX_LISTED_KEYS]))
        self._lines += None not in found  # a line that may have the column shows nothing

    def _has(self, record: dict[str, Any], name: str) -> bool | None:
        try:
            return has_path(record, name, through_lists=self._through_lists)
        except RecursionError:  # lists nested a thousand deep
            return None

    def missing(self, files: Sequence[SourceFile], *, is_all: bool) -> NoColumn | None:
        """The error that lists the columns, if there were lines and none of them has one of these."""
        if self.is_found or not self._lines:
            return None
        sources = "a source" if len(files) == 1 else "the sources"
        others = f", and {count(len(files) - 1, 'more file')}" if len(files) > 1 else ""
        first = "the first " if len(files) == 1 else ""
        return NoColumn(
            f"no line of {sources} has the column {' or '.join(map(repr, self._columns))}",
            f"file         {files[0].path}{others}",
            *([] if is_all else [f"looked at    {first}{count(self._lines, 'line')}"]),
            f"columns      {', '.join(list(self._keys)[:MAX_LISTED_KEYS]) or 'none'}",
            *(line for column in self._columns for line in did_you_mean(column, self._keys)),
            OTHER_COLUMN,
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
    search.add(lines if is_all else lines[:-1])
    return search.is_found, search.missing([file], is_all=is_all)


def refuse_messages(file: SourceFile, names: Sequence[str]) -> None:
    """Raise UsageError if a path goes through messages with roles in one of the first lines of a JSON Lines file."""
    for line in read_sample(file)[0].removeprefix(BYTE_ORDER_MARK).split(b"\n"):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            continue
        for name in names if isinstance(record, dict) else ():
            if is_conversation(record, name):
                refuse_conversation(file.path, name)


def search_lines(
    files: Sequence[SourceFile], *columns: str, through_lists: bool = True, is_all: bool = True
) -> tuple[SourceFile | None, NoColumn | None]:
    """The first file that has one of the columns in SEARCH_BYTES of lines of all files, or the error if none has one.

    `is_all` says whether there are no other files. Damage is reported later, when the files are read.
    """
    search = ColumnSearch(columns, through_lists=through_lists)
    max_bytes = max(SEARCH_BYTES // len(files), CHUNK_BYTES)
    for file in files:
        try:
            is_all &= _search_file(search, file, max_bytes)
        except (MalformedDataError, pa.ArrowException, OSError, EOFError):
            is_all = False
        if search.is_found:
            return file, None
    return None, search.missing(files, is_all=is_all)


def _search_file(search: ColumnSearch, file: SourceFile, max_bytes: int) -> bool:
    """Search the first lines of a file. Returns whether these are all of its lines."""
    held, left = b"", max_bytes
    with open_stream(file, [(0, min(file.size, max_bytes))]) as opened:
        stream = ValueStream(opened) if has_values(file) else opened
        while left > 0 and not search.is_found:
            data = stream.read(min(left, CHUNK_BYTES))
            if not data:
                search.add([held])
                return True
            data = data.removeprefix(BYTE_ORDER_MARK) if left == max_bytes else data
            left -= len(data)
            *lines, held = (held + data).split(b"\n")
            search.add(lines)
    return False


def with_other_source(error: NoColumn, other: SourceFile) -> NoColumn:
    """The same error, with a note that another source has the column."""
    return NoColumn(
        error.headline,
        *error.details[:-1],
        f"has it       {other.path} ({other.kind})",
        "Sources with their text in different columns go into stores of their own: prepare each with its --column.",
    )
