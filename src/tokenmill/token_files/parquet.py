"""Parquet: a row for each document, with its tokens, the path of its source, its row there, and kept columns.

Any Parquet reader can read the files, `datasets` among them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.errors import StoreError
from tokenmill.storage import Folder
from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.storage.untrusted.parquet_pages import RowGroup, count_pages, read_groups
from tokenmill.storage.untrusted.tables import ARROW_ERRORS
from tokenmill.token_files import packed_rows
from tokenmill.token_files.files import (
    IGNORED,
    damaged,
    file_size,
    join_marks,
    labels,
    no_index,
    publish,
    rechunk,
    split_marks,
)
from tokenmill.token_files.protocol import (
    COLUMN_TYPES,
    Content,
    FormatSpec,
    ScriptDefaults,
    Shard,
    ShardData,
    Tokens,
    WrittenFile,
)

SPEC = FormatSpec(
    name="parquet",
    trainer="datasets (Hugging Face), Lance",
    files="train-00000-of-00001.parquet",
    dtypes=("uint16", "uint32"),
    cuts=False,
    use='datasets.load_dataset("{directory}")',
    use_packed='PackedSequenceSpecs(packed_sequence_size={row_tokens}, packed_train_data_path="{train}")',
    defaults=ScriptDefaults(end="appended", shard_tokens=100_000_000, columns=("input_ids", "source", "row")),
    masks={"labels": ("labels", "attention_mask"), "weights": ("loss_weights",)},
)
# The types of the values in the columns of masks.
MASK_TYPES = {"labels": pa.int32(), "attention_mask": pa.int8(), "loss_weights": pa.float32()}
# The label of a token that is not trained on, as in torch.nn.CrossEntropyLoss.

# Tokens of a row group, unless one document is longer.
GROUP_TOKENS = 1 << 22

# Maximum rows of a row group.
GROUP_ROWS = 1 << 20

# Offsets of a list column are int32.
MAX_TOKENS = (1 << 31) - 1

# Values that even a tiny file may have, and the maximum of values per byte of a file beyond them: documents that repeat
# one token are compressed to nearly nothing.
SPARE = 1 << 26
MAX_VALUES_FACTOR = 1 << 12

# The bytes of a value and its levels in a page, at most.
VALUE_BYTES = 8

# Magic number, length of the footer, magic number.
MIN_BYTES = 12

finish = no_index


def files(shard: Shard) -> tuple[str, ...]:
    """Return one file. `datasets` gets the split from its name."""
    return (f"{shard.split}-{shard.number:05d}-of-{shard.count:05d}.parquet",)


def write(folder: Folder, shard: Shard, content: Content) -> tuple[WrittenFile, ...]:
    """Write row groups of about GROUP_TOKENS tokens, or of one longer document."""
    name = files(shard)[0]
    if shard.row_tokens is not None:
        return (write_tables(folder, name, packed_rows.schema(shard.dtype), packed_rows.tables(shard, content)),)
    if len(content.lengths) and int(content.lengths.max()) > MAX_TOKENS:
        raise StoreError(f"a document of {int(content.lengths.max())} tokens is too long for {folder.path(name)}")
    groups = list(row_groups(content.lengths))
    sizes = (int(content.lengths[group].sum()) for group in groups)
    dtype = "uint32" if shard.mask else shard.dtype
    batches = zip(groups, rechunk(content.batches, sizes, dtype), strict=True)
    tables = (_table(shard, content, group, tokens) for group, tokens in batches)
    return (write_tables(folder, name, _schema(shard), tables),)


def write_tables(folder: Folder, name: str, schema: pa.Schema, tables: Iterable[pa.Table]) -> WrittenFile:
    """Write a row group for each table."""
    # Plain values with light compression: on text that does not repeat, a sixth smaller and a third faster than
    # indices into a dictionary, and supported by every reader.
    with publish(folder, name) as file:
        with pq.ParquetWriter(
            file,
            schema,
            use_dictionary=["source"],
            compression="zstd",
            compression_level=1,
            write_statistics=["source", "row"],
            write_page_checksum=True,
            store_schema=False,
        ) as writer:
            for table in tables:
                writer.write_table(table, GROUP_ROWS)
        return file.written


def read(folder: Folder, names: Sequence[str], dtype: str) -> ShardData:
    """Read the tokens and lengths of a file's documents. Raises if a page does not match its checksum."""
    with opened(folder, names[0]) as (reader, found):
        if tuple(reader.schema_arrow.names) == packed_rows.COLUMNS:
            rows_read = [packed_rows.read_group(reader, index, dtype) for index in range(len(found))]
            return ShardData(*_joined(rows_read, "uint32"))
        columns = read_columns(reader, len(SPEC.defaults.columns) + len(SPEC.masks.get(_mask_of(reader), ())))
        groups = [_read_group(reader, index, group, dtype) for index, group in enumerate(found)]
        rows = sum(group.rows for group in found)
        tokens, lengths = _joined(groups, dtype)
        if len(lengths) != rows:
            raise ValueError(f"it has {len(lengths)} documents, {rows} expected")
    return ShardData(tokens, lengths, columns)


@contextlib.contextmanager
def opened(folder: Folder, name: str) -> Iterator[tuple[pq.ParquetFile, list[RowGroup]]]:
    """Yield a checked file and its row groups. Errors of the block are raised as damage of the file."""
    if file_size(folder, name) < MIN_BYTES or folder.read(name, 4) != b"PAR1":
        raise damaged(folder, name, "it does not begin as a Parquet file")
    try:
        data = folder.buffer(name)
        groups = read_groups(data)
        _check_size(data, groups)
        yield pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True, pre_buffer=False), groups
    except (*ARROW_ERRORS, MalformedDataError) as error:
        raise damaged(folder, name, str(error)) from error


def _joined(groups: Sequence[tuple[Tokens, npt.NDArray[np.int64]]], dtype: str) -> tuple[Tokens, npt.NDArray[np.int64]]:
    """The tokens and lengths of all row groups."""
    tokens = np.concatenate([tokens for tokens, _ in groups] or [np.empty(0, dtype)])
    return tokens, np.concatenate([np.empty(0, np.int64), *(lengths for _, lengths in groups)])


def read_columns(reader: pq.ParquetFile, first: int) -> pa.Table:
    """Read the kept columns: those from the number `first` on."""
    names = reader.schema_arrow.names[first:]
    table = reader.read(names, use_threads=False)
    is_text = [pa.types.is_string(field.type) for field in table.schema]
    kinds = [COLUMN_TYPES["string"] if text else field.type for text, field in zip(is_text, table.schema, strict=True)]
    if table.column_names != names or not set(kinds) <= set(COLUMN_TYPES.values()):
        raise ValueError(f"it has the columns {', '.join(map(str, table.schema))[:200]}")
    return table.cast(pa.schema(zip(names, kinds, strict=True)))


def _check_size(data: pa.Buffer, groups: Sequence[RowGroup]) -> None:
    """Raise if the content is far larger than the file. The limit allows documents that repeat one token."""
    pages, limit = count_pages(data, groups), MAX_VALUES_FACTOR * data.size + SPARE
    if pages.unpacked_bytes > VALUE_BYTES * limit or pages.max_values > limit:
        raise MalformedDataError(
            f"{data.size} bytes would become {pages.unpacked_bytes}, and {pages.max_values} tokens"
        )


def _schema(shard: Shard) -> pa.Schema:
    return pa.schema(
        [
            pa.field(shard.columns, _token_type(shard.dtype), nullable=False),
            *(pa.field(name, _list_of(MASK_TYPES[name]), nullable=False) for name in SPEC.masks.get(shard.mask, ())),
            *origin_fields(shard),
        ]
    )


def origin_fields(shard: Shard) -> list[pa.Field]:
    """The columns for the origins of documents, and the kept columns."""
    return [
        # Readers see strings, because the Arrow schema is not stored.
        pa.field("source", pa.dictionary(pa.int32(), pa.string()), nullable=False),
        pa.field("row", pa.uint64(), nullable=False),
        *(pa.field(column.name, COLUMN_TYPES[column.type]) for column in shard.with_columns),
    ]


def _token_type(dtype: str) -> pa.DataType:
    return _list_of(pa.from_numpy_dtype(dtype))


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))


def row_groups(lengths: npt.NDArray[np.int64], max_rows: int | None = None) -> Iterator[slice]:
    """Yield slices of documents for row groups, each with at least one document."""
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):
        before = int(ends[start] - lengths[start])
        stop = int(np.searchsorted(ends, before + GROUP_TOKENS, "right"))
        stop = min(max(stop, start + 1), start + (max_rows or GROUP_ROWS))
        yield slice(start, stop)
        start = stop


def _table(shard: Shard, content: Content, group: slice, tokens: Tokens) -> pa.Table:
    """Return the table of some documents."""
    offsets = np.zeros(group.stop - group.start + 1, np.int32)
    np.cumsum(content.lengths[group], out=offsets[1:])
    columns = [*_token_columns(shard, offsets, tokens), *origin_columns(shard, content, group)]
    return pa.table(columns, schema=_schema(shard))


def origin_columns(shard: Shard, content: Content, group: slice) -> list[pa.Array]:
    """Return the origins of some documents, with only the paths that they use, each once; and their kept columns.

    pyarrow writes bytes of unused memory for a dictionary with equal values.
    """
    used, source = np.unique(content.source[group], return_inverse=True)
    paths = shard.paths.take(pa.array(used)).cast(pa.string()).dictionary_encode()
    kept = content.columns(group.start, group.stop) if shard.with_columns else pa.table({})
    return [
        pa.DictionaryArray.from_arrays(paths.indices.take(pa.array(source)), paths.dictionary),
        pa.array(content.row[group]),
        *kept.columns,
    ]


def _token_columns(shard: Shard, offsets: npt.NDArray[np.int32], tokens: Tokens) -> list[pa.Array]:
    """The tokens of some documents, and what tells which of them are trained on.

    A weight is that of a loss, as in levanter: the loss of the token after, and 0 at the end of a document.
    """
    ids, is_trained = split_marks(tokens, shard.dtype) if shard.mask else (tokens, None)
    values = [pa.array(ids)]
    if is_trained is not None and shard.mask == "labels":
        values += [pa.array(labels(ids, is_trained))]
        values += [pa.array(np.ones(len(ids), np.int8))]
    elif is_trained is not None:
        weights = np.append(is_trained[1:], False).astype(np.float32)
        weights[_last_tokens(np.diff(offsets))] = 0
        values += [pa.array(weights)]
    return [pa.ListArray.from_arrays(pa.array(offsets), each, _list_of(each.type)) for each in values]


def _last_tokens(lengths: npt.NDArray[np.integer]) -> npt.NDArray[np.int64]:
    """Where the last token of each document is. Empty documents have none."""
    return np.cumsum(lengths, dtype=np.int64)[lengths > 0] - 1


def _read_mask(reader: pq.ParquetFile, index: int, ids: Tokens, lengths: npt.NDArray[np.int64]) -> Tokens:
    """The tokens of a row group with what tells which of them are trained on. Raises if that is of other tokens."""
    kind = _mask_of(reader)
    if not kind:
        return ids
    name = SPEC.masks[kind][0]
    column = reader.read_row_group(index, [name], use_threads=False).column(0).combine_chunks()
    values = column.flatten().to_numpy()
    is_right = np.array_equal(column.value_lengths().to_numpy(), lengths) and not column.null_count
    if is_right and kind == "labels":
        is_trained = values != IGNORED
        is_right = np.array_equal(values[is_trained], ids[is_trained].astype(np.int32))
    elif is_right:
        is_trained = np.append(np.False_, values != 0)[:-1]
        is_right = set(np.unique(values).tolist()) <= {0, 1} and not values[_last_tokens(lengths)].any()
    if not is_right:
        raise ValueError(f"its {name} are not those of its tokens")
    return join_marks(ids, is_trained)


def _mask_of(reader: pq.ParquetFile) -> str:
    """How the file tells which tokens are trained on; empty if it does not."""
    names = reader.schema_arrow.names[1:]
    return next((kind for kind, columns in SPEC.masks.items() if names[: len(columns)] == list(columns)), "")


def _read_group(
    reader: pq.ParquetFile, index: int, group: RowGroup, dtype: str
) -> tuple[Tokens, npt.NDArray[np.int64]]:
    """Read the tokens and lengths of a row group. Raises if its counts differ; an empty document counts as a value."""
    if group.rows > GROUP_ROWS:
        raise ValueError(f"a row group has {group.rows} rows")
    column = reader.read_row_group(index, reader.schema_arrow.names[:1], use_threads=False).column(0).combine_chunks()
    if column.type != _token_type(dtype) or column.null_count:
        raise ValueError(f"its tokens are {column.type}, not {dtype}")
    lengths = column.value_lengths().to_numpy().astype(np.int64)
    values = group.columns[0][2]
    if int(np.maximum(lengths, 1).sum()) != values or len(lengths) != group.rows:
        raise ValueError(f"a row group does not hold the {values} values that it states")
    return _read_mask(reader, index, column.flatten().to_numpy(), lengths), lengths
