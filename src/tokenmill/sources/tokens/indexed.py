"""Files of tokens with an index: a row is the number of a document, and a slice is a range of documents."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tokenmill.sources.documents import Columns, Documents, Int64Array, ReadOptions, Slice, Slices, SourceFile, Span
from tokenmill.sources.tokens.opened import (
    ID_BYTES,
    as_documents,
    no_columns,
    open_source,
    require_columns,
    token_source,
)

# How many documents of an index are looked at at a time.
DOCUMENTS_PER_BATCH = 1 << 16
MAX_BYTES = np.iinfo(np.int64).max


def split(file: SourceFile, options: ReadOptions, unit_bytes: int) -> Slices:
    """Ranges of equally many documents. Those with more than twice `unit_bytes` of ids are divided."""
    tokens = open_source(file, token_source(options))
    documents = tokens.documents or 0
    if not documents:
        nothing = np.empty(0, np.int64)
        return Slices(nothing, nothing, nothing, nothing)
    count = min(max(round(tokens.tokens * ID_BYTES / unit_bytes), 1), documents)
    todo = [int(edge) for edge in np.linspace(0, documents, count + 1)][::-1]
    places = {edge: int(tokens.edges(edge, edge)[0]) for edge in todo}
    edges = [todo.pop()]
    while todo:
        start, stop = edges[-1], todo[-1]
        if stop - start > 1 and (places[stop] - places[start]) * ID_BYTES > 2 * unit_bytes:
            todo.append((start + stop) // 2)
            places[todo[-1]] = int(tokens.edges(todo[-1], todo[-1])[0])
        else:
            edges.append(todo.pop())
    starts, sizes = np.array(edges, np.int64), np.array([places[edge] for edge in edges], np.int64)
    return Slices(starts[:-1], starts[1:], np.diff(sizes) * ID_BYTES, np.diff(starts))


def byte_ranges(file: SourceFile, file_slice: Slice | None, options: ReadOptions) -> list[Span]:
    """Empty for a slice: its bytes are unknown until the index has been read."""
    del options
    return [] if file_slice is not None else [(0, file.size)]


def read(file: SourceFile, file_slice: Slice, options: ReadOptions) -> Iterator[Documents]:
    """The documents of the slice. A document that is too long is not read."""
    tokens = open_source(file, token_source(options))
    for first in range(file_slice.start, file_slice.stop, DOCUMENTS_PER_BATCH):
        edges = tokens.edges(first, min(first + DOCUMENTS_PER_BATCH, file_slice.stop))
        lengths, rows = np.diff(edges), np.arange(first, first + len(edges) - 1, dtype=np.uint64)
        is_long = lengths * ID_BYTES > (options.document_bytes or MAX_BYTES)
        batches = _batches(edges, is_long, options)
        ranges = [(int(edges[at.start]), int(edges[at.start if is_long[at.start] else at.stop])) for at in batches]
        for at, ids in zip(batches, tokens.pieces(ranges), strict=True):
            if is_long[at.start]:
                yield as_documents(file, ids, lengths[at] * 0, rows[at], options, int(lengths[at.start]))
            else:
                yield as_documents(file, ids, lengths[at], rows[at], options)


def _batches(edges: Int64Array, is_long: npt.NDArray[np.bool_], options: ReadOptions) -> list[slice]:
    """The documents in batches of about `batch_bytes`. A document that is too long is a batch."""
    filled = (edges[:-1] - edges[0]) * ID_BYTES // max(options.batch_bytes, 1)
    cuts = np.flatnonzero((np.diff(filled) != 0) | is_long[1:] | is_long[:-1]) + 1
    return [slice(*pair) for pair in itertools.pairwise([0, *cuts.tolist(), len(is_long)])]


def read_columns(
    file: SourceFile, file_slice: Slice | None, names: tuple[str, ...], options: ReadOptions
) -> Iterator[Columns]:
    """Raise UsageError: files of tokens have no columns."""
    del file_slice, options
    return no_columns(file, names)


__all__ = ["byte_ranges", "read", "read_columns", "require_columns", "split"]
