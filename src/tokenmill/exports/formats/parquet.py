"""Parquet: a row for each document, with its tokens, the path of its source, its row there, and kept columns.

Any Parquet reader can read the files, `datasets` among them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.errors import StoreError
from tokenmill.exports.formats.files import damaged, file_size, no_index, publish, rechunk
from tokenmill.exports.formats.protocol import (
    COLUMN_TYPES,
    Content,
    FormatSpec,
    ScriptDefaults,
    Shard,
    ShardData,
    Tokens,
    WrittenFile,
)
from tokenmill.storage import Folder
from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.storage.untrusted.parquet_pages import RowGroup, count_pages, read_groups
from tokenmill.storage.untrusted.tables import ARROW_ERRORS

SPEC = FormatSpec(
    name="parquet",
    trainer="datasets (Hugging Face), Lance",
    files="train-00000-of-00001.parquet",
    dtypes=("uint16", "uint32"),
    cuts=False,
    use='datasets.load_dataset("{directory}")',
    defaults=ScriptDefaults(end="appended", shard_tokens=100_000_000, columns=("input_ids", "source", "row")),
)
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
    if len(content.lengths) and int(content.lengths.max()) > MAX_TOKENS:
        raise StoreError(f"a document of {int(content.lengths.max())} tokens is too long for {folder.path(name)}")
    groups = list(_groups(content.lengths))
    sizes = (int(content.lengths[group].sum()) for group in groups)
    with publish(folder, name) as file:
        # Plain values with light compression: on text that does not repeat, a sixth smaller and a third faster than
        # indices into a dictionary, and supported by every reader.
        with pq.ParquetWriter(
            file,
            _schema(shard),
            use_dictionary=["source"],
            compression="zstd",
            compression_level=1,
            write_statistics=["source", "row"],
            write_page_checksum=True,
            store_schema=False,
        ) as writer:
            for group, tokens in zip(groups, rechunk(content.batches, sizes, shard.dtype), strict=True):
                writer.write_table(_table(shard, content, group, tokens), GROUP_ROWS)
        return (file.written,)


def read(folder: Folder, names: Sequence[str], dtype: str) -> ShardData:
    """Read the tokens and lengths of a file's documents. Raises if a page does not match its checksum."""
    name = names[0]
    if file_size(folder, name) < MIN_BYTES or folder.read(name, 4) != b"PAR1":
        raise damaged(folder, name, "it does not begin as a Parquet file")
    try:
        data = folder.buffer(name)
        row_groups = read_groups(data)
        _check_size(data, row_groups)
        reader = pq.ParquetFile(pa.BufferReader(data), page_checksum_verification=True, pre_buffer=False)
        columns = _read_columns(reader)
        groups = [_read_group(reader, index, group, dtype) for index, group in enumerate(row_groups)]
        rows = sum(group.rows for group in row_groups)
    except (*ARROW_ERRORS, MalformedDataError) as error:
        raise damaged(folder, name, str(error)) from error
    tokens = np.concatenate([np.empty(0, dtype), *(tokens for tokens, _ in groups)])
    lengths = np.concatenate([np.empty(0, np.int64), *(lengths for _, lengths in groups)])
    if len(lengths) != rows:
        raise damaged(folder, name, f"it has {len(lengths)} documents, {rows} expected")
    return ShardData(tokens, lengths, columns)


def _read_columns(reader: pq.ParquetFile) -> pa.Table:
    """Read the kept columns: those after the columns that every file has."""
    names = reader.schema_arrow.names[len(SPEC.defaults.columns) :]
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
            # Readers see strings, because the Arrow schema is not stored.
            pa.field("source", pa.dictionary(pa.int32(), pa.string()), nullable=False),
            pa.field("row", pa.uint64(), nullable=False),
            *(pa.field(column.name, COLUMN_TYPES[column.type]) for column in shard.with_columns),
        ]
    )


def _token_type(dtype: str) -> pa.DataType:
    return pa.list_(pa.field("element", pa.from_numpy_dtype(dtype), nullable=False))


def _groups(lengths: npt.NDArray[np.int64]) -> Iterator[slice]:
    """Yield slices of documents for row groups, each with at least one document."""
    ends = np.cumsum(lengths)
    start = 0
    while start < len(lengths):
        before = int(ends[start] - lengths[start])
        stop = int(np.searchsorted(ends, before + GROUP_TOKENS, "right"))
        stop = min(max(stop, start + 1), start + GROUP_ROWS)
        yield slice(start, stop)
        start = stop


def _table(shard: Shard, content: Content, group: slice, tokens: Tokens) -> pa.Table:
    """Return the table of some documents, with only the paths that they use, each once.

    pyarrow writes bytes of unused memory for a dictionary with equal values.
    """
    offsets = np.zeros(group.stop - group.start + 1, np.int32)
    np.cumsum(content.lengths[group], out=offsets[1:])
    used, source = np.unique(content.source[group], return_inverse=True)
    paths = shard.paths.take(pa.array(used)).cast(pa.string()).dictionary_encode()
    columns = [
        pa.ListArray.from_arrays(pa.array(offsets), pa.array(tokens), _token_type(shard.dtype)),
        pa.DictionaryArray.from_arrays(paths.indices.take(pa.array(source)), paths.dictionary),
        pa.array(content.row[group]),
    ]
    kept = content.columns(group.start, group.stop) if shard.with_columns else pa.table({})
    return pa.table([*columns, *kept.columns], schema=_schema(shard))


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
    return column.flatten().to_numpy(), lengths
