"""Rows of whole documents in Parquet, as the fine-tuning of Megatron-Bridge, NeMo-RL and Nemotron reads them.

A row has `input_ids`; `loss_mask`, which is 1 where the token after a token is trained on, and 0 for the last one of
each document; and `seq_start_id`, where its documents begin. Rows are not padded: the trainer does that.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tokenmill.best_fit import Numbers
from tokenmill.token_files.files import join_marks, rechunk, split_marks
from tokenmill.token_files.protocol import Content, Shard, Tokens

COLUMNS = ("input_ids", "loss_mask", "seq_start_id")

# Tokens of a row group: the trainer reads a group for each row that it takes in another order.
GROUP_TOKENS = 1 << 20


def schema(dtype: str) -> pa.Schema:
    """The columns of a file with tokens of this type."""
    kinds = (pa.from_numpy_dtype(dtype), pa.int8(), pa.int32())
    return pa.schema(
        [pa.field(name, _list_of(kind), nullable=False) for name, kind in zip(COLUMNS, kinds, strict=True)]
    )


def tables(shard: Shard, content: Content) -> Iterator[pa.Table]:
    """Yield the row groups of a shard."""
    assert shard.row_tokens is not None  # noqa: S101 - only such a shard has rows
    offsets = np.append(0, np.cumsum(content.lengths))
    edges = _edges(offsets, shard.row_tokens)
    groups = _edges(offsets[edges], max(GROUP_TOKENS, shard.row_tokens))
    stops = offsets[edges[groups]]
    batches = rechunk(content.batches, np.diff(stops).tolist(), "uint32")
    for first, last, tokens in zip(groups[:-1].tolist(), groups[1:].tolist(), batches, strict=True):
        documents, rows = offsets[edges[first] : edges[last] + 1], edges[first : last + 1]
        yield _table(tokens, documents - documents[0], rows - rows[0], shard.dtype)


def _edges(offsets: Numbers, size: int) -> Numbers:
    """Where items with these offsets are divided, so that as many as fit into `size` are together."""
    edges = [0]
    while edges[-1] < len(offsets) - 1:
        edges.append(int(np.searchsorted(offsets, offsets[edges[-1]] + size, side="right")) - 1)
    return np.array(edges)


def _table(marked: Tokens, documents: Numbers, rows: Numbers, dtype: str) -> pa.Table:
    """The rows of some documents: `documents` are their offsets, `rows` the first document of each row."""
    ids, is_trained = split_marks(marked, dtype)
    mask = np.append(is_trained[1:], False).astype(np.int8)
    mask[documents[1:] - 1] = 0
    starts = documents[:-1] - np.repeat(documents[rows[:-1]], np.diff(rows))
    offsets = [documents[rows], documents[rows], rows]
    columns = zip(offsets, (ids, mask, starts.astype(np.int32)), schema(dtype), strict=True)
    return pa.table(
        [
            pa.ListArray.from_arrays(pa.array(edges, pa.int32()), pa.array(values), field.type)
            for edges, values, field in columns
        ],
        schema=schema(dtype),
    )


def read_group(reader: pq.ParquetFile, index: int, dtype: str) -> tuple[Tokens, Numbers]:
    """Read the tokens with marks, and the lengths of the documents. Raises ValueError for what `tables` never gives."""
    table = reader.read_row_group(index, use_threads=False).combine_chunks()
    if table.schema.types != schema(dtype).types or any(column.null_count for column in table.columns):
        raise ValueError(f"its rows are not those of {dtype}")
    columns = [column.chunk(0) for column in table.columns]
    ids, mask, starts = (column.flatten().to_numpy() for column in columns)
    tokens, masked, documents = (column.value_lengths().to_numpy().astype(np.int64) for column in columns)
    begins = starts + np.repeat(np.cumsum(tokens) - tokens, documents)
    lengths = np.diff(begins, append=len(ids))
    firsts = np.cumsum(documents) - documents
    is_sound = np.array_equal(tokens, masked) and bool((documents > 0).all() and (lengths > 0).all())
    if (
        not is_sound
        or starts[firsts].any()
        or bool(((mask != 0) & (mask != 1)).any())
        or mask[begins + lengths - 1].any()
    ):
        raise ValueError("its masks or its documents are not those of its rows")
    return join_marks(ids, np.append(False, mask[:-1] > 0)), lengths


def _list_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind, nullable=False))
