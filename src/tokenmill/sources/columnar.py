"""What Parquet and Arrow share: one column of text, groups of rows packed into slices, rows counted."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import SourceError
from tokenmill.sources.bad_rows import split_valid, without_long
from tokenmill.sources.documents import BadRow, Documents, Int64Array, ReadOptions, SourceFile, as_text
from tokenmill.sources.missing_column import NoColumn
from tokenmill.storage.text_types import is_text

MAX_ANNOUNCED = 1 << 42
"""More rows or bytes than this are not in one file; sums over a million files fit into 64 bits."""

NULLS_PER_BATCH = 1 << 16
BINARY_TYPES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}


def text_column(file: SourceFile, schema: pa.Schema, name: str) -> int:
    """The position of the named column of text, or the error that tells which columns there are."""
    positions = schema.get_all_field_indices(name)
    if len(positions) != 1:
        found = f"{len(positions)} columns" if positions else "no column"
        raise _column_error(
            file, schema, f"a source has {found} named {name!r}", SourceError if positions else NoColumn
        )
    kind = schema.field(positions[0]).type
    if pa.types.is_nested(kind):
        raise _column_error(file, schema, f"the column {name!r} is nested ({kind}): tokenmill reads plain columns only")
    if not is_text(kind):
        raise _column_error(file, schema, f"the column {name!r} is no text but {kind}")
    return int(positions[0])


def _column_error(
    file: SourceFile, schema: pa.Schema, headline: str, error: type[SourceError] = SourceError
) -> SourceError:
    columns = ", ".join(f"{field.name} ({_short(field.type)})" for field in list(schema)[:50]) or "none"
    return error(
        headline,
        f"file         {file.path}",
        f"columns      {columns}",
        "Name the column that holds the text: --column NAME.",
    )


def _short(kind: pa.DataType) -> str:
    name = str(kind)
    return name if len(name) <= 40 else name.split("<", 1)[0]


def checked_counts(what: str, announced: list[int]) -> Int64Array:
    """Numbers that a file tells of itself; an error if they cannot be right."""
    if any(number < 0 for number in announced) or sum(announced) > MAX_ANNOUNCED:
        raise EOFError(f"the {what} cannot be right: {min(announced):,} to {max(announced):,}")
    return np.array(announced, dtype=np.int64)


def pack(sizes: Int64Array, target_bytes: int) -> Int64Array:
    """The edges that cut groups of these sizes into runs of about `target_bytes`: run i is [edges[i], edges[i + 1])."""
    before = np.cumsum(sizes) - sizes
    starts = np.flatnonzero(np.diff(before // max(target_bytes, 1), prepend=-1))
    return np.append(starts, len(sizes)).astype(np.int64)


def sums(values: Int64Array, edges: Int64Array) -> Int64Array:
    """The sum of the values of each run."""
    total = np.concatenate([[0], np.cumsum(values)])
    return np.asarray(total[edges[1:]] - total[edges[:-1]], dtype=np.int64)


def number_rows(
    file: SourceFile, columns: Iterable[pa.Array], rows: range, options: ReadOptions
) -> Iterator[Documents]:
    """The values of a column as documents, regrouped to about `batch_bytes`; they must be as many as `rows`."""
    first = rows.start
    for text in _gather(columns, options.batch_bytes):
        numbers = np.arange(first, first + len(text), dtype=np.uint64)
        documents = without_long(file, Documents(text, numbers), options)
        yield from _cut(split_valid(file, documents, options), options.batch_bytes)
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
    for text in itertools.chain.from_iterable(_texts(column, batch_bytes) for column in columns):
        held.append(text)
        held_bytes += text.nbytes
        if 2 * held_bytes >= batch_bytes:  # what nearly fills a batch is not worth a copy to fill it
            joined = _joined(held)
            held, held_bytes = [], 0
            yield joined
    if held:
        yield _joined(held)


def _texts(column: pa.Array, batch_bytes: int) -> Iterator[pa.LargeStringArray]:
    """A column as text, in pieces where it may be much larger than it was: nulls, or one long value in every row."""
    if pa.types.is_null(column.type):
        for start in range(0, len(column), NULLS_PER_BATCH):
            yield as_text(column.slice(start, NULLS_PER_BATCH))
        return
    if not pa.types.is_dictionary(column.type):
        _check(column)
        yield as_text(column)
        return
    column.validate()
    column.indices.validate(full=True)
    _check(column.dictionary)
    values = as_text(column.dictionary)
    pa.DictionaryArray.from_arrays(column.indices, pa.nulls(len(values)), safe=False).validate(full=True)
    lengths = pc.binary_length(values.cast(pa.large_binary())).take(column.indices).fill_null(0)
    edges = pack(lengths.to_numpy(zero_copy_only=False).astype(np.int64), batch_bytes)
    for start, stop in itertools.pairwise(edges.tolist()):
        yield values.take(column.indices.slice(start, stop - start))


def _check(column: pa.Array) -> None:
    """Find what is damaged before anything follows it: offsets, views, nulls. UTF-8 is another question."""
    column.validate()
    column.view(BINARY_TYPES.get(column.type, column.type)).validate(full=True)


def _joined(arrays: list[pa.LargeStringArray]) -> pa.LargeStringArray:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _cut(documents: Documents, batch_bytes: int) -> Iterator[Documents]:
    text = documents.text
    if not len(text) or text.nbytes <= 2 * batch_bytes:
        yield documents
        return
    offsets = np.frombuffer(text.buffers()[1], dtype=np.int64)[text.offset :][: len(text) + 1]
    edges = pack(np.diff(offsets), batch_bytes)
    bad_rows = np.array([bad.row for bad in documents.bad], dtype=np.uint64)
    told = np.searchsorted(bad_rows, documents.rows[edges[1:-1]])  # each with the rows around it
    for start, stop, bad in zip(edges[:-1].tolist(), edges[1:].tolist(), _runs(documents.bad, told), strict=True):
        yield Documents(text.slice(start, stop - start), documents.rows[start:stop], bad)


def _runs(bad: tuple[BadRow, ...], edges: npt.NDArray[np.intp]) -> Iterator[tuple[BadRow, ...]]:
    bounds = [0, *edges.tolist(), len(bad)]
    return (bad[start:stop] for start, stop in itertools.pairwise(bounds))
