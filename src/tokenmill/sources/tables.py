"""What Parquet and Arrow share: one column of text, groups of rows packed into slices, rows counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from tokenmill.errors import SourceError
from tokenmill.sources.documents import Documents, Int64Array, SourceFile, as_text, checked


def text_column(file: SourceFile, schema: pa.Schema, name: str) -> int:
    """The position of the named column of text, or the error that tells which columns there are."""
    positions = schema.get_all_field_indices(name)
    if len(positions) != 1:
        found = f"{len(positions)} columns" if positions else "no column"
        raise _column_error(file, schema, f"a source has {found} named {name!r}")
    kind = schema.field(positions[0]).type
    if pa.types.is_nested(kind):
        raise _column_error(file, schema, f"the column {name!r} is nested ({kind}): tokenmill reads plain columns only")
    if not _is_text(kind):
        raise _column_error(file, schema, f"the column {name!r} is no text but {kind}")
    return int(positions[0])


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return bool(pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type))
    strings = (pa.string(), pa.large_string(), pa.string_view())
    return kind in (*strings, pa.binary(), pa.large_binary(), pa.binary_view(), pa.null())


def _column_error(file: SourceFile, schema: pa.Schema, headline: str) -> SourceError:
    columns = ", ".join(f"{field.name} ({_short(field.type)})" for field in list(schema)[:50]) or "none"
    return SourceError(
        headline,
        f"file         {file.path}",
        f"columns      {columns}",
        "Name the column that holds the text: --column NAME.",
    )


def _short(kind: pa.DataType) -> str:
    name = str(kind)
    return name if len(name) <= 40 else name.split("<", 1)[0]


def pack(sizes: Int64Array, target_bytes: int) -> Int64Array:
    """The edges that cut groups of these sizes into runs of about `target_bytes`: run i is [edges[i], edges[i + 1])."""
    before = np.cumsum(sizes) - sizes
    starts = np.flatnonzero(np.diff(before // max(target_bytes, 1), prepend=-1))
    return np.append(starts, len(sizes)).astype(np.int64)


def sums(values: Int64Array, edges: Int64Array) -> Int64Array:
    """The sum of the values of each run."""
    total = np.concatenate([[0], np.cumsum(values)])
    return np.asarray(total[edges[1:]] - total[edges[:-1]], dtype=np.int64)


def number_rows(file: SourceFile, columns: Iterable[pa.Array], rows: range, batch_bytes: int) -> Iterator[Documents]:
    """The values of a column as documents, regrouped to about `batch_bytes`; they must be as many as `rows`."""
    first = rows.start
    for text in _gather(columns, batch_bytes):
        numbers = np.arange(first, first + len(text), dtype=np.uint64)
        yield from _cut(checked(file, text, numbers), batch_bytes)
        first += len(text)
    if first != rows.stop:
        raise SourceError(
            "a source does not hold the rows that it declares",
            f"file         {file.path}",
            f"expected     {len(rows)} rows from row {rows.start}",
            f"found        {first - rows.start}",
        )


def _gather(columns: Iterable[pa.Array], batch_bytes: int) -> Iterator[pa.LargeStringArray]:
    held: list[pa.LargeStringArray] = []
    held_bytes = 0
    for column in columns:
        column.validate(full=pa.types.is_dictionary(column.type))  # a cast would follow damaged indices
        held.append(as_text(column))
        held_bytes += held[-1].nbytes
        if 2 * held_bytes >= batch_bytes:  # what nearly fills a batch is not worth a copy to fill it
            text = _joined(held)
            held, held_bytes = [], 0
            yield text
    if held:
        yield _joined(held)


def _joined(arrays: list[pa.LargeStringArray]) -> pa.LargeStringArray:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _cut(documents: Documents, batch_bytes: int) -> Iterator[Documents]:
    text = documents.text
    if text.nbytes <= 2 * batch_bytes:
        yield documents
        return
    offsets = np.frombuffer(text.buffers()[1], dtype=np.int64)[text.offset :][: len(text) + 1]
    edges = pack(np.diff(offsets), batch_bytes)
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        yield Documents(text.slice(start, stop - start), documents.rows[start:stop])
