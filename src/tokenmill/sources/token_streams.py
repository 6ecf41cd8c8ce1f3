"""Rows of tokens that are parts of a stream of documents (`--rows stream` and `--rows overlap`).

A document is what stands between two end tokens, so its rows may be any number. It belongs to the slice that has the
end token before it, and has the row of that token. The reader of a slice goes on after its end until the next one.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tokenmill.errors import SourceError
from tokenmill.sources.documents import CONTINUED, Documents, ReadOptions, RowArray, Slice, SourceFile, SourceKind
from tokenmill.sources.token_lists import ID_BYTES
from tokenmill.sources.token_source import ID_TYPE, OVERLAP, TokenInput
from tokenmill.storage.arrow_text import binary_array, text_buffers

Ids = npt.NDArray[np.uint32]


def read_stream(
    kind: SourceKind, file: SourceFile, file_slice: Slice, options: ReadOptions, source: TokenInput
) -> Iterator[Documents]:
    """The documents of a slice, without their end tokens. Rows in which none begins are skipped."""
    stop, end = kind.split(file, options, 1 << 62).whole().stop, np.array([source.end], ID_TYPE)
    # The last end token and what follows it, and the row of each token. A file begins as if an end token were before.
    held, rows = (end, np.zeros(1, np.uint64)) if file_slice.start == 0 else (end[:0], np.empty(0, np.uint64))
    read, begun, is_first = [np.empty(0, np.uint64)], [np.empty(0, np.uint64)], file_slice.start == 0
    for batch in kind.read(file, file_slice, options):
        yield batch.filter(batch.null_mask())
        read.append(batch.without_nulls().rows)
        ids, of_row = _tokens(batch, source)
        held, rows = np.concatenate([held, ids]), np.concatenate([rows, of_row])
        ends = np.flatnonzero(held == source.end)
        if len(ends) > 1:
            documents = _between(held, rows, ends)
            documents = documents.slice(int(is_first and ends[1] == 1), len(documents.rows))
            begun.append(documents.rows)
            is_first = False
            yield documents
        held, rows = (held[ends[-1] :], rows[ends[-1] :]) if len(ends) else (held[:0], rows[:0])
        _refuse_endless(file, held, rows, options)
    following = kind.read(file, Slice(file_slice.stop, stop), options) if file_slice.stop < stop and len(held) else ()
    is_ended = False
    for batch in following:
        ids, of_row = _tokens(batch, source)
        ends = np.flatnonzero(ids == source.end)[:1]
        count = ends[0] if len(ends) else len(ids)
        held, rows = np.concatenate([held, ids[:count]]), np.concatenate([rows, of_row[:count]])
        _refuse_endless(file, held, rows, options)
        is_ended = bool(len(ends))
        if is_ended:
            break
    if len(held) > 1 or is_ended:
        held = np.concatenate([held, end])
        last = _between(held, rows, np.array([0, len(held) - 1]))
        begun.append(last.rows)
        yield last
    others = np.setdiff1d(np.concatenate(read), np.concatenate(begun))
    nothing = binary_array(np.empty(0, np.uint8), np.zeros(1, np.int64))
    yield Documents(nothing, others[:0], skipped={CONTINUED: others} if len(others) else {})


def _tokens(documents: Documents, source: TokenInput) -> tuple[Ids, RowArray]:
    """The tokens of some rows, and the row of each. Nulls have none."""
    present = documents.without_nulls()
    data, offsets = text_buffers(present.text)
    ids, lengths = data.view(ID_TYPE), np.diff(offsets) // ID_BYTES
    rows = np.repeat(present.rows, lengths)
    if source.rows == OVERLAP:
        is_kept = np.ones(len(ids), np.bool_)
        is_kept[(offsets[:-1] // ID_BYTES)[(lengths > 0) & (present.rows > 0)]] = False
        ids, rows = ids[is_kept], rows[is_kept]
    return ids, rows


def _between(ids: Ids, rows: RowArray, ends: npt.NDArray[np.int64]) -> Documents:
    """The documents between end tokens at these places."""
    is_kept = np.zeros(len(ids), np.bool_)
    is_kept[ends[0] : ends[-1]] = True
    is_kept[ends] = False
    offsets = np.append(0, np.cumsum(np.diff(ends) - 1)) * ID_BYTES
    return Documents(binary_array(ids[is_kept].view(np.uint8), offsets), rows[ends[:-1]])


def _refuse_endless(file: SourceFile, ids: Ids, rows: RowArray, options: ReadOptions) -> None:
    """Raise SourceError if a document is longer than documents may be."""
    if options.document_bytes is not None and len(ids) * ID_BYTES > options.document_bytes:
        raise SourceError(
            f"there is no end token in {len(ids):,} tokens",
            f"file         {file.path}",
            f"from row     {rows[0]}",
            "Give the end token of the sources with --source-eot. Or take each row as it is: --rows documents.",
        )
