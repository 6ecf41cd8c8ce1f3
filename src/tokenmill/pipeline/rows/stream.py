"""Rows from objects of Python, as record batches: frames, Arrow tables, and iterables of strings or dicts.

Strings are a column `text` of bytes, so that a string that is no UTF-8 is a bad document, as in a file. Dicts may have
any keys, so they become lines of JSON. Frames and tables keep their columns; dictionaries are decoded, and offsets have
64 bits, so that equal rows give equal bytes however they are cut into batches.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import pyarrow as pa

from tokenmill.errors import SourceError, UsageError
from tokenmill.store.spool import ARROW, JSONL

BATCH_ROWS = 1024

LINE, TEXT = "line", "text"
"""The column of lines of JSON, and that of strings."""

_LARGE = {
    **dict.fromkeys((pa.string(), pa.string_view()), pa.large_string()),
    **dict.fromkeys((pa.binary(), pa.binary_view()), pa.large_binary()),
}

# An array of so many bytes is made of strings at a time.
ARRAY_BYTES = 4 << 20

TAKES = (
    "rows are a DataFrame of pandas or Polars, an Arrow table, a dataset of Hugging Face, or an iterable of strings "
    "or dicts"
)


@dataclass(frozen=True, slots=True)
class RowStream:
    """Rows that are read once, in batches of one schema. `size` is about their bytes, if that is known.

    Of the kind `jsonl`, the only column has the lines with their ends.
    """

    kind: str
    batches: Iterator[pa.RecordBatch]
    size: int | None = None


def stream_of(rows: Any) -> RowStream:
    """The rows of an object. Raises UsageError if it holds no rows."""
    name = type(rows).__name__
    module = type(rows).__module__.split(".")[0]
    if module == "pandas" and name == "DataFrame":
        return _of_pandas(rows)
    if module == "polars" and name == "LazyFrame":
        raise UsageError("a LazyFrame has no rows yet", "Collect it first: frame.collect().")
    if module == "polars" and name == "DataFrame":
        tables = (part.to_arrow() for part in rows.iter_slices(BATCH_ROWS))
        return _of_tables(chain([rows.head(0).to_arrow()], tables), int(rows.estimated_size()))
    if isinstance(rows, pa.Table | pa.RecordBatch):
        table = pa.Table.from_batches([rows]) if isinstance(rows, pa.RecordBatch) else rows
        parts = (pa.Table.from_batches([batch]) for batch in table.to_batches())
        return _of_tables(chain([table.schema.empty_table()], parts), table.nbytes)
    if isinstance(rows, pa.RecordBatchReader):
        return of_reader(rows)
    if not isinstance(rows, Iterable) and hasattr(rows, "__arrow_c_stream__"):  # such as a relation of DuckDB
        return of_reader(pa.RecordBatchReader.from_stream(rows))
    if isinstance(rows, io.IOBase):
        raise UsageError("an open file is no source", "Give its path. Standard input is the path -.")
    if isinstance(rows, Mapping | bytes) or not isinstance(rows, Iterable):
        raise UsageError(f"sources has to be a path, a list of paths, or rows, not a {name}", f"{TAKES}.")
    return _of_iterable(rows)


def of_reader(reader: pa.RecordBatchReader) -> RowStream:
    """The rows of a reader of record batches."""
    batches = _counted(iter(reader), len)
    return _of_tables(chain([reader.schema.empty_table()], (pa.Table.from_batches([batch]) for batch in batches)), None)


def _of_pandas(frame: Any) -> RowStream:
    """The rows of a frame of pandas. An index with a name or other values than row numbers is a column."""
    try:
        schema = pa.Schema.from_pandas(frame)
    except (ValueError, TypeError, pa.ArrowException) as error:
        raise _unusable("a DataFrame", error) from error

    def tables() -> Iterator[pa.Table]:
        yield schema.empty_table()
        for start in range(0, len(frame), BATCH_ROWS):
            try:
                yield pa.Table.from_pandas(frame.iloc[start : start + BATCH_ROWS], schema=schema)
            except (ValueError, TypeError, pa.ArrowException) as error:
                raise _unusable("a DataFrame", error) from error

    return _of_tables(tables(), int(frame.memory_usage(deep=True).sum()))


def _of_tables(tables: Iterator[pa.Table], size: int | None) -> RowStream:
    return RowStream(ARROW, plain_batches(tables), size)


def plain_batches(tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """The rows of tables in batches whose types do not depend on how the rows are held. All have the first's schema."""
    schema = None
    for table in tables:
        if schema is None:
            schema = pa.schema([pa.field(field.name, plain_type(field.type)) for field in table.schema])
        try:
            yield from table.cast(schema).to_batches() or pa.Table.from_batches([], schema).to_batches()
        except (ValueError, pa.ArrowException) as error:
            raise _unusable("a table", error) from error
    if schema is not None:
        yield pa.RecordBatch.from_pylist([], schema)


def plain_type(kind: pa.DataType) -> pa.DataType:
    """The type of the same values without dictionaries, views and extensions, and with large strings."""
    if isinstance(kind, pa.BaseExtensionType):
        return plain_type(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return plain_type(kind.value_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.large_list(plain_type(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, plain_type(field.type)) for field in kind])
    return _LARGE.get(kind, kind)


def _of_iterable(rows: Iterable[Any]) -> RowStream:
    """The rows of an iterable, all of which are strings or all dicts."""
    given = _counted(iter(rows), lambda _: 1)
    first = next(given, None)
    if first is None:
        return RowStream(ARROW, iter(()))
    if isinstance(first, Mapping):
        return RowStream(JSONL, _arrays(chain([first], given), LINE, _as_line))
    return RowStream(ARROW, _arrays(chain([first], given), TEXT, _as_bytes))


def _counted(items: Iterator[Any], rows_of: Callable[[Any], int]) -> Iterator[Any]:
    """The items. What the iterator raises is a SourceError with the number of the row."""
    done = 0
    try:
        for item in items:
            yield item
            done += rows_of(item)
    except Exception as error:
        raise SourceError(
            f"the rows end with an error after {done:,} rows",
            f"raised       {type(error).__name__}: {error}",
            "No row was kept. Run it again with all rows.",
        ) from error


def _arrays(rows: Iterable[Any], column: str, encode: Callable[[Any], bytes | None]) -> Iterator[pa.RecordBatch]:
    """Batches of one column of bytes."""
    schema = pa.schema([(column, pa.large_binary())])
    held: list[bytes | None] = []
    size = 0
    for number, row in enumerate(rows):
        try:
            value = encode(row)
        except (TypeError, ValueError, RecursionError) as error:
            raise UsageError(
                f"row {number:,} cannot be a document",
                f"reason       {error}",
                "All rows are strings, or all are dicts whose values JSON has.",
            ) from error
        held.append(value)
        size += len(value or b"")
        if size >= ARRAY_BYTES or len(held) >= BATCH_ROWS:
            yield pa.record_batch([pa.array(held, pa.large_binary())], schema=schema)
            held, size = [], 0
    yield pa.record_batch([pa.array(held, pa.large_binary())], schema=schema)


def _as_bytes(row: Any) -> bytes | None:
    if row is None or isinstance(row, bytes):
        return row
    if not isinstance(row, str):
        raise TypeError(f"it is a {type(row).__name__}, and the rows before are strings")
    return _utf8(row)


def _as_line(row: Any) -> bytes:
    if not isinstance(row, Mapping):
        raise TypeError(f"it is a {type(row).__name__}, and the rows before are dicts")
    return _utf8(json.dumps(dict(row), ensure_ascii=False, default=_as_json)) + b"\n"


def _as_json(value: Any) -> Any:
    """A value that JSON has, of one that it does not have: bytes are text, an array of NumPy is a list."""
    if isinstance(value, bytes):
        return value.decode("utf-8", "surrogateescape")
    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is no value of JSON")


def _utf8(text: str) -> bytes:
    """Text as UTF-8; a lone surrogate gives bytes that are not UTF-8, so that the row is a bad document."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")


def _unusable(what: str, error: Exception) -> UsageError:
    return UsageError(
        f"{what} cannot be read as columns of one type each",
        f"reason       {str(error).splitlines()[0] if str(error) else type(error).__name__}",
        "Convert or drop the column, and give each column a name of its own.",
    )
