"""What a source holds, from its start: its columns, and which of them looks like text, messages or token ids."""

from __future__ import annotations

import contextlib
import csv
import io
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.sources import arrow, parquet
from tokenmill.sources.delimited import BYTE_ORDER_MARK, compression_ratio, read_sample
from tokenmill.sources.documents import SourceFile
from tokenmill.sources.foreign import refuse_foreign
from tokenmill.sources.json_values import ValueLines, has_values
from tokenmill.sources.segments import TEXT, TRAIN
from tokenmill.sources.text_columns import ROLE, is_list
from tokenmill.storage.arrow_text import is_text
from tokenmill.storage.untrusted.malformed import MalformedDataError

# How many rows are looked at, and how much of a file without a footer.
PEEK_ROWS, PEEK_BYTES = 500, 4 << 20
# What a column can hold. Others are shown by their type.
IDS, MESSAGES, SEGMENTS = "ids", "messages", "segments"
# The names of columns that people use, the most telling first.
TEXT_NAMES = ("text", "content", "raw_content", "document", "body", "story", "markdown")
ID_NAMES = ("input_ids", "tokens", "token_ids", "ids")
# A column of shorter text is a name, a language or an address.
MIN_TEXT_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Peek:
    """The start of a source. `columns` says what each column holds, `rows` how many rows the source has.

    `is_estimate` says that the rows were estimated from the size of the file.
    """

    columns: dict[str, str]
    rows: int | None
    is_estimate: bool
    start: pa.Table

    @property
    def column(self) -> str | None:
        """The column that is most probably meant: of messages, of text, or of ids."""
        by_kind = {
            kind: [name for name, held in self.columns.items() if held == kind] for kind in (MESSAGES, TEXT, IDS)
        }
        texts = sorted((name for name in by_kind[TEXT] if name in TEXT_NAMES), key=TEXT_NAMES.index)
        ids = sorted((name for name in by_kind[IDS] if name in ID_NAMES), key=ID_NAMES.index) or by_kind[IDS]
        long = max(by_kind[TEXT], key=self._mean_characters, default="")
        others = [long] if long and self._mean_characters(long) >= MIN_TEXT_CHARACTERS else []
        segments = [name for name, held in self.columns.items() if held == SEGMENTS]
        return next(iter([*by_kind[MESSAGES], *segments, *texts, *ids, *others, *by_kind[TEXT]]), None)

    def _mean_characters(self, name: str) -> float:
        return float(pc.mean(pc.utf8_length(self.start[name])).as_py() or 0)

    def documents(self, name: str) -> list[npt.NDArray[np.uint32]]:
        """The ids of each of the first rows, from a column of ids."""
        return [ids.values.to_numpy(zero_copy_only=False).astype(np.uint32) for ids in self.start[name] if ids.is_valid]


def peek(file: SourceFile) -> Peek:
    """Look at the start of a source. Raises SourceError if it is of another kind than its name says."""
    if file.kind == "parquet":
        rows, start = parquet.read_start(file, PEEK_ROWS, PEEK_BYTES)
        return _peek(start, rows)
    if file.kind == "arrow":
        rows, start = arrow.read_start(file, PEEK_ROWS)
        return _peek(start, rows)
    refuse_foreign(file)
    data, is_all = read_sample(file, PEEK_BYTES)
    data = data.removeprefix(BYTE_ORDER_MARK)
    if file.kind == "text":
        return Peek({}, None, is_estimate=False, start=pa.table({}))
    lines = _lines(file, data, is_all=is_all)
    records = _delimited(file, lines) if file.kind == "csv" else list(filter(None, map(_record, lines)))
    names = dict.fromkeys(name for record in records[:PEEK_ROWS] for name in record)
    start = pa.table({name: _column([record.get(name) for record in records[:PEEK_ROWS]]) for name in names})
    content_bytes = file.size * compression_ratio(file)
    rows = len(records) if is_all else round(len(records) * content_bytes / max(sum(map(len, lines)), 1))
    return _peek(start, rows, is_estimate=not is_all)


def _peek(start: pa.Table, rows: int, *, is_estimate: bool = False) -> Peek:
    return Peek({name: _held(start[name], name) for name in start.column_names}, rows, is_estimate, start)


def _held(column: pa.ChunkedArray, name: str) -> str:
    """What a column holds."""
    kind = column.type
    if is_text(kind):
        return TEXT
    if is_list(kind) and pa.types.is_integer(kind.value_type):
        return IDS if _are_ids(column, name) else f"numbers ({kind})"
    fields = {field.name for field in kind.value_type.fields} if is_list(kind) and _has_fields(kind) else set()
    if ROLE in fields:
        return MESSAGES
    return SEGMENTS if {TEXT, TRAIN} <= fields else str(kind)


def _has_fields(kind: pa.DataType) -> bool:
    return bool(pa.types.is_struct(kind.value_type))


def _are_ids(column: pa.ChunkedArray, name: str) -> bool:
    """Whether lists of whole numbers can be ids: not negative, not only 0 and 1, not counted up."""
    values = pc.list_flatten(column)
    if not len(values) or values.null_count:
        return name in ID_NAMES and not values.null_count
    numbers = values.combine_chunks().to_numpy(zero_copy_only=False)
    steps = np.diff(numbers.astype(np.int64))
    return bool(numbers.min() >= 0 and numbers.max() > 1 and (len(steps) < 1 or np.mean(steps == 1) < 1 / 2))


def _lines(file: SourceFile, data: bytes, *, is_all: bool) -> list[bytes]:
    """The whole lines of the start of a file."""
    if file.kind == "jsonl" and has_values(file):
        with contextlib.suppress(MalformedDataError):
            data = ValueLines().convert(data)
    lines = data.split(b"\n")
    return lines if is_all or len(lines) == 1 else lines[:-1]


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _delimited(file: SourceFile, lines: list[bytes]) -> list[dict[str, Any]]:
    """The records of CSV, as far as they are whole."""
    text = io.StringIO(b"\n".join(lines).decode(errors="replace"), newline="")
    first = lines[0].decode(errors="replace") if lines else ""
    separator = "\t" if ".tsv" in file.path.lower() else max(",;\t|", key=first.count)
    return [
        {name: value for name, value in record.items() if isinstance(name, str) and isinstance(value, str)}
        for record in csv.DictReader(text, delimiter=separator)
    ]


def _column(values: list[Any]) -> pa.Array:
    """Values of JSON as a column; values of several types are a column without a type."""
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError):
        return pa.nulls(len(values))
