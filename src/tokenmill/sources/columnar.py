"""Shared by Parquet and Arrow: select the text column, pack groups of rows into slices, number and batch the rows."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import SourceError
from tokenmill.humanize import did_you_mean
from tokenmill.sources.bad_rows import split_valid, without_long
from tokenmill.sources.conversations import join_columns
from tokenmill.sources.documents import (
    Columns,
    Documents,
    Int64Array,
    ReadOptions,
    SourceFile,
    as_content,
    as_text,
)
from tokenmill.sources.missing_column import OTHER_COLUMN, NoColumn
from tokenmill.sources.plain_values import as_plain
from tokenmill.sources.segments import TEXT, TRAIN, join_segments
from tokenmill.sources.text_columns import ROLE, is_list, join_of, refuse_conversation, strings_at, template_of
from tokenmill.sources.token_lists import join_ids
from tokenmill.storage.arrow_text import is_text
from tokenmill.storage.untrusted.malformed import MalformedDataError

# Sanity limit for the rows or bytes that one file declares. Sums over a million files fit into 64 bits.
MAX_DECLARED = 1 << 42
NULLS_PER_BATCH = 1 << 16
BINARY_TYPES = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary(), pa.string_view(): pa.binary_view()}


@dataclass(frozen=True, slots=True)
class ColumnPath:
    """A column, the fields of structs that lead from it to the values, and the leaf of the values in a Parquet file.

    `is_conversation` is whether the path goes through a list of structs with a role.
    """

    column: int
    name: str
    steps: tuple[str, ...]
    leaf: int
    kind: pa.DataType
    is_conversation: bool = False

    def text(self, batch: pa.RecordBatch, join: str) -> pa.Array:
        """The text of each row."""
        column = self._column(batch)
        return strings_at(column, self.steps, join) if pa.types.is_nested(column.type) else column

    @property
    def leaves(self) -> range:
        """The leaves of all values below the path."""
        return range(self.leaf, self.leaf + _leaves(self.kind))

    def nested(self, batch: pa.RecordBatch) -> pa.Array:
        """The value of each row, whatever its type is."""
        column = functools.reduce(pc.struct_field, self.steps, self._column(batch))
        column.validate()
        return column

    def lists(self, batch: pa.RecordBatch) -> pa.Array:
        """The list of structs of each row, with the fields that are read."""
        column = functools.reduce(pc.struct_field, self.steps[:-1], self._column(batch))
        column.validate()
        return column

    def values(self, batch: pa.RecordBatch) -> pa.Array:
        """The plain value of each row."""
        return as_plain(functools.reduce(pc.struct_field, self.steps, self._column(batch)))

    def _column(self, batch: pa.RecordBatch) -> pa.Array:
        """The column of this name, which the reader was asked for. It may have found another one in its file."""
        index = batch.schema.get_field_index(self.name)
        if index < 0:
            raise MalformedDataError(f"it has {', '.join(batch.schema.names)} where the column {self.name} has to be")
        return batch.column(index)


FindColumn = Callable[[SourceFile, pa.Schema, str], ColumnPath]


def read_text(
    batches: Iterable[pa.RecordBatch], paths: Sequence[ColumnPath], options: ReadOptions
) -> Iterator[pa.Array]:
    """The text of each batch, from the columns at these paths."""
    template = template_of(options)
    if options.segments:
        yield from (join_segments(paths[0].lists(batch)) for batch in batches)
        return
    if options.tokens is not None:
        yield from (join_ids(paths[0].nested(batch)) for batch in batches)
        return
    if options.messages:
        yield from (join_columns([path.nested(batch) for path in paths]) for batch in batches)
        return
    for batch in batches:
        texts = [path.text(batch, join_of(options)) for path in paths]
        if not template.is_plain:
            for text in texts:
                _validate_structure(text)
        yield texts[0] if template.is_plain else template.fill(list(map(as_text, texts)), options.null)


def refuse_conversations(file: SourceFile, paths: Sequence[ColumnPath], options: ReadOptions) -> None:
    """Raise UsageError if a path goes through messages, unless the user asks for their texts to be joined."""
    for path in paths if options.joins_texts and options.join is None else ():
        if path.is_conversation:
            refuse_conversation(file.path, ".".join([path.name, *path.steps]))


def text_column(file: SourceFile, schema: pa.Schema, name: str) -> ColumnPath:
    """The named text column. Raises an error that lists the columns if there is not exactly one."""
    path = _column_path(file, schema, name)
    kind = path.kind
    while is_list(kind):
        kind = kind.value_type
    if kind is not path.kind and pa.types.is_struct(kind) and kind.get_field_index(ROLE) >= 0:
        refuse_conversation(file.path, name)
    if not is_text(kind):
        found = f"nested ({_short_name(path.kind)})" if pa.types.is_nested(path.kind) else str(path.kind)
        has_segments = pa.types.is_struct(kind) and {TEXT, TRAIN} <= {field.name for field in kind.fields}
        meant = [f"--segments {name} takes a column of lists of {{text, train}}."] if has_segments else []
        raise _column_error(file, schema, f"the column {name!r} is {found}, not text{_fields(name, kind)}", *meant)
    return path


def segment_field(file: SourceFile, schema: pa.Schema, name: str) -> ColumnPath:
    """A field of a column of segments. Raises an error that lists the columns if the column holds something else."""
    column, _, field = name.rpartition(".")
    path = _column_path(file, schema, name)
    kind = schema.field(path.name).type
    for step in path.steps[:-1]:
        kind = pa.null() if is_list(kind) else kind.field(step).type
    is_right = is_text if field == TEXT else pa.types.is_boolean
    if not is_list(kind) or not pa.types.is_struct(kind.value_type) or not is_right(path.kind):
        what = "text" if field == TEXT else "true or false"
        found = f"{field} of the column {column!r} is {path.kind}, not {what}"
        raise _column_error(file, schema, found if is_list(kind) else f"the column {column!r} is no list of segments")
    return path


def message_column(file: SourceFile, schema: pa.Schema, name: str) -> ColumnPath:
    """A column of messages or of tools. Raises an error that lists the columns if it cannot hold them."""
    path = _column_path(file, schema, name)
    kind = path.kind
    tests = (pa.types.is_struct, pa.types.is_map, pa.types.is_null)
    is_right = is_text(kind) or (is_list(kind) and any(test(kind.value_type) for test in tests))
    if not is_right or _is_in_list(schema, path):
        found = f"the column {name!r} is {_short_name(kind)}, not a list of objects for each row"
        raise _column_error(file, schema, found)
    return path


def ids_column(file: SourceFile, schema: pa.Schema, name: str) -> ColumnPath:
    """A column of lists of token ids. Raises an error that lists the columns if it holds something else."""
    path = _column_path(file, schema, name)
    is_right = is_list(path.kind) and (
        pa.types.is_integer(path.kind.value_type) or pa.types.is_null(path.kind.value_type)
    )
    if not is_right or _is_in_list(schema, path):
        found = f"the column {name!r} is {_short_name(path.kind)}, not a list of whole numbers for each row"
        raise _column_error(file, schema, found)
    return path


def finder(options: ReadOptions) -> FindColumn:
    """The function that finds the columns of the text."""
    if options.tokens is not None:
        return ids_column
    if options.messages:
        return message_column
    return segment_field if options.segments else text_column


def plain_column(file: SourceFile, schema: pa.Schema, name: str) -> ColumnPath:
    """The named column. Raises an error that lists the columns if there is not one with plain values."""
    path = _column_path(file, schema, name)
    if pa.types.is_nested(path.kind):
        what = f"the column {name!r} is nested ({_short_name(path.kind)}), and its values cannot be kept or compared"
        raise _column_error(file, schema, what)
    if _is_in_list(schema, path):
        what = f"the path {name!r} goes through a list, and its values cannot be kept or compared"
        raise _column_error(file, schema, what)
    return path


def _is_in_list(schema: pa.Schema, path: ColumnPath) -> bool:
    """Whether a path goes through a list."""
    kind = schema.field(path.column).type
    for step in path.steps:
        if not pa.types.is_struct(kind):
            return True
        kind = kind.field(step).type
    return False


def _fields(name: str, kind: pa.DataType) -> str:
    """The fields of a struct that are text, as names for --column."""
    fields = kind.fields if pa.types.is_struct(kind) else []
    names = [f"{name}.{field.name}" for field in fields if is_text(field.type)]
    return f"; its text fields are {', '.join(names[:10])}" if names else ""


def _column_path(file: SourceFile, schema: pa.Schema, name: str) -> ColumnPath:
    """The column of this name, or the path of fields that it names."""
    first, *steps = (name,) if schema.get_all_field_indices(name) else name.split(".")
    indices = schema.get_all_field_indices(first)
    if len(indices) != 1:
        amount = f"{len(indices)} columns" if indices else "no column"
        kind_of_error = SourceError if indices else NoColumn
        meant = [] if indices else did_you_mean(name, schema.names)
        raise _column_error(file, schema, f"a source has {amount} named {name!r}", *meant, error=kind_of_error)
    index = int(indices[0])
    kind = schema.field(index).type
    leaf = sum(_leaves(field.type) for field in list(schema)[:index])
    is_conversation = False
    for step in steps:
        is_in_list = is_list(kind)
        while is_list(kind):
            kind = kind.value_type
        is_conversation |= is_in_list and pa.types.is_struct(kind) and kind.get_field_index(ROLE) >= 0
        position = kind.get_field_index(step) if pa.types.is_struct(kind) else -1
        if position < 0:
            headline = f"a source has no field {step!r} of the column {name!r}"
            raise _column_error(file, schema, headline, error=NoColumn)
        leaf += sum(_leaves(field.type) for field in kind.fields[:position])
        kind = kind.field(position).type
    return ColumnPath(index, first, tuple(steps), leaf, kind, is_conversation)


def _leaves(kind: pa.DataType) -> int:
    """How many columns of a Parquet file hold values of this type."""
    if isinstance(kind, pa.BaseExtensionType):
        return _leaves(kind.storage_type)
    return sum(_leaves(kind.field(number).type) for number in range(kind.num_fields)) or 1


def _column_error(
    file: SourceFile, schema: pa.Schema, headline: str, *meant: str, error: type[SourceError] = SourceError
) -> SourceError:
    columns = ", ".join(f"{field.name} ({_short_name(field.type)})" for field in list(schema)[:50]) or "none"
    return error(
        headline,
        f"file         {file.path}",
        f"columns      {columns}",
        *meant,
        OTHER_COLUMN,
    )


def _short_name(kind: pa.DataType) -> str:
    name = str(kind)
    return name if len(name) <= 40 else name.split("<", 1)[0]


def checked_counts(what: str, declared: list[int]) -> Int64Array:
    """Counts that a file declares about itself. Raises EOFError if they are impossible."""
    if any(number < 0 for number in declared) or sum(declared) > MAX_DECLARED:
        raise EOFError(f"the {what} cannot be right: {min(declared):,} to {max(declared):,}")
    return np.array(declared, dtype=np.int64)


def pack(sizes: Int64Array, target_bytes: int) -> Int64Array:
    """Pack consecutive groups into ranges of about `target_bytes`: range i is [edges[i], edges[i + 1])."""
    before = np.cumsum(sizes) - sizes
    starts = np.flatnonzero(np.diff(before // max(target_bytes, 1), prepend=-1))
    return np.append(starts, len(sizes)).astype(np.int64)


def sums(values: Int64Array, edges: Int64Array) -> Int64Array:
    """The sum of the values of each range of `pack`."""
    total = np.concatenate([[0], np.cumsum(values)])
    return np.asarray(total[edges[1:]] - total[edges[:-1]], dtype=np.int64)


def number_rows(
    file: SourceFile, columns: Iterable[pa.Array], rows: range | None, options: ReadOptions
) -> Iterator[Documents]:
    """The values of a column as documents, in batches of about `batch_bytes`. Raises if they are not `len(rows)`.

    Without `rows`, the first row is 0, and any number of rows is right.
    """
    first = 0 if rows is None else rows.start
    for text in _regroup(columns, options):
        numbers = np.arange(first, first + len(text), dtype=np.uint64)
        documents = without_long(file, Documents(text, numbers), options)
        yield from _split_large(split_valid(file, documents, options), options.batch_bytes)
        first += len(text)
    if rows is not None and first != rows.stop:
        raise _wrong_rows(file, rows, first)


def number_values(
    file: SourceFile, batches: Iterable[pa.RecordBatch], rows: range, paths: Mapping[str, ColumnPath]
) -> Iterator[Columns]:
    """The values of some columns, batch by batch, with their row numbers. Raises if they are not `len(rows)`."""
    first = rows.start
    for batch in batches:
        values = pa.table({name: path.values(batch) for name, path in paths.items()})
        yield Columns(np.arange(first, first + len(batch), dtype=np.uint64), values)
        first += len(batch)
    if first != rows.stop:
        raise _wrong_rows(file, rows, first)


def _wrong_rows(file: SourceFile, rows: range, stop: int) -> SourceError:
    return SourceError(
        "a source does not hold the rows that it declares",
        f"file         {file.path}",
        f"expected     {len(rows)} rows from row {rows.start}",
        f"found        {stop - rows.start}",
    )


def _regroup(columns: Iterable[pa.Array], options: ReadOptions) -> Iterator[pa.LargeStringArray]:
    held: list[pa.LargeStringArray] = []
    held_bytes = 0
    for text in itertools.chain.from_iterable(_as_texts(column, options) for column in columns):
        held.append(text)
        held_bytes += text.nbytes
        if 2 * held_bytes >= options.batch_bytes:  # filling the rest of the batch is not worth another copy
            joined = _concat(held)
            held, held_bytes = [], 0
            yield joined
    if held:
        yield _concat(held)


def _as_texts(column: pa.Array, options: ReadOptions) -> Iterator[pa.LargeStringArray]:
    """A column as text. Nulls and dictionaries are split, because they may become much larger as text."""
    if pa.types.is_null(column.type):
        for start in range(0, len(column), NULLS_PER_BATCH):
            yield as_text(column.slice(start, NULLS_PER_BATCH))
        return
    if not pa.types.is_dictionary(column.type):
        _validate_structure(column)
        yield as_content(column, options)
        return
    column.validate()
    column.indices.validate(full=True)
    _validate_structure(column.dictionary)
    values = as_text(column.dictionary)
    pa.DictionaryArray.from_arrays(column.indices, pa.nulls(len(values)), safe=False).validate(full=True)
    lengths = pc.binary_length(values.cast(pa.large_binary())).take(column.indices).fill_null(0)
    edges = pack(lengths.to_numpy(zero_copy_only=False).astype(np.int64), options.batch_bytes)
    for start, stop in itertools.pairwise(edges.tolist()):
        yield values.take(column.indices.slice(start, stop - start))


def _validate_structure(column: pa.Array) -> None:
    """Raise if offsets, views or nulls are damaged, before any code follows them. Does not check UTF-8."""
    column.validate()
    column.view(BINARY_TYPES.get(column.type, column.type)).validate(full=True)


def _concat(arrays: list[pa.LargeStringArray]) -> pa.LargeStringArray:
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def _split_large(documents: Documents, batch_bytes: int) -> Iterator[Documents]:
    text = documents.text
    if not len(text) or text.nbytes <= 2 * batch_bytes:
        yield documents
        return
    offsets = np.frombuffer(text.buffers()[1], dtype=np.int64)[text.offset :][: len(text) + 1]
    edges = pack(np.diff(offsets), batch_bytes)
    bad_rows = np.array([bad.row for bad in documents.bad], dtype=np.uint64)
    cuts = np.searchsorted(bad_rows, documents.rows[edges[1:-1]])  # a bad row stays with the rows around it
    bad_edges = [0, *cuts.tolist(), len(bad_rows)]
    for (start, stop), (low, high) in zip(
        itertools.pairwise(edges.tolist()), itertools.pairwise(bad_edges), strict=True
    ):
        yield Documents(text.slice(start, stop - start), documents.rows[start:stop], documents.bad[low:high])
