"""How the documents of a stream fill rows, by the packing: cut anywhere, packed with few cuts, or whole and padded.

The rows of a stream stand one after the other: row r has the positions [r * S, (r + 1) * S), for sequences of S tokens.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from tokenmill.storage import prefetch_map
from tokenmill.store import layout
from tokenmill.store.part_index import running_sums
from tokenmill.training.batches import PADDING, DocumentPiece, Span
from tokenmill.training.derived_table import derived_columns
from tokenmill.training.index import Stream
from tokenmill.training.order import Numbers
from tokenmill.training.packing import (
    WINDOW_GRAINS,
    WINDOW_SEQUENCES,
    PackedRows,
    PackedWindow,
    PackedWindows,
    pack,
    pack_whole,
)
from tokenmill.training.split_table import Choice

# Of each window: its rows, and the documents that are longer than a row.
SCHEMA = pa.schema([("rows", pa.int64()), ("long_documents", pa.int64()), ("long_tokens", pa.int64())])

# Windows of an object store whose documents are fetched at the same time.
PREFETCH_WINDOWS = 16


@dataclass(frozen=True, slots=True)
class Waste:
    """The documents that are longer than a sequence, which an epoch leaves out, their tokens, and those of padding."""

    long_documents: int = 0
    long_tokens: int = 0
    padding_tokens: int = 0

    def __add__(self, other: Waste) -> Waste:
        return Waste(
            self.long_documents + other.long_documents,
            self.long_tokens + other.long_tokens,
            self.padding_tokens + other.padding_tokens,
        )


class Rows(Protocol):
    """The rows of a stream."""

    @property
    def tokens(self) -> int:
        """The positions of all rows."""

    @property
    def waste(self) -> Waste:
        """What the rows leave out, and their padding."""

    def spans(self, start: int, stop: int, sequence_tokens: int) -> list[Span]:
        """The ranges of the stream that fill the rows with positions [start, stop)."""


class CutRows:
    """The stream, cut into rows. The token after a row is its last label, so the last token begins none."""

    waste = Waste()

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.tokens = max(stream.tokens - 1, 0)

    def spans(self, start: int, stop: int, _sequence_tokens: int) -> list[Span]:
        """One range."""
        return [Span(self._stream, start, stop)]


class BestFitRows:
    """The rows of windows of grains, which have exactly the tokens of the window."""

    waste = Waste()

    def __init__(self, stream: Stream, grain_tokens: int, windows: PackedWindows) -> None:
        self._stream = stream
        self._window_tokens = WINDOW_GRAINS * grain_tokens
        self._windows = windows
        self.tokens = max(stream.tokens - 1, 0) // grain_tokens * grain_tokens

    def spans(self, start: int, stop: int, sequence_tokens: int) -> list[Span]:
        """The pieces of documents in packed rows."""
        size = self._window_tokens
        spans: list[Span] = []
        for first in range(start - start % size, stop, size):
            pack_it = functools.partial(self._pack, first, sequence_tokens)
            window = self._windows.window((id(self), first, sequence_tokens), pack_it)
            low, high = max(start - first, 0), min(stop - first, size)
            spans += _window_spans(self._stream, window, low // sequence_tokens, high // sequence_tokens)
        return spans

    def _pack(self, first: int, sequence_tokens: int) -> PackedWindow:
        """Pack the window that begins with a token of the stream."""
        stop = min(first + self._window_tokens, self.tokens)
        begins, numbers = self._stream.documents(first, stop)
        is_last_cut = not self._stream.is_document_start(stop)
        rows = pack(begins, stop - first, sequence_tokens, is_last_cut=is_last_cut)
        return PackedWindow(first, (first, stop + 1), rows, _documents(rows, begins, numbers))


class WholeRows:
    """The rows of windows of whole documents, padded. A window has the documents that begin in a range of the stream.

    So each document is of one window, and there is no tail. How many rows a window has is known when it was packed: a
    small table, made once and kept in the store, tells in which window a row is.
    """

    def __init__(self, stream: Stream, choice: Choice, row_tokens: int, windows: PackedWindows) -> None:
        self._stream = stream
        self._row_tokens = row_tokens
        self._window_tokens = WINDOW_SEQUENCES * row_tokens
        self._windows = windows
        rows, documents, tokens = derived_columns(
            stream.source_parts.folder,
            f"{layout.SPLITS}/whole-{row_tokens}-{choice.split}-{choice.label}.parquet",
            SCHEMA,
            f"{choice.origin(stream.store)} {choice.split} {row_tokens} {WINDOW_SEQUENCES}",
            self._count,
        )
        self._ends = running_sums(rows)
        self.tokens = int(rows.sum()) * row_tokens
        long_tokens = int(tokens.sum())
        self.waste = Waste(int(documents.sum()), long_tokens, self.tokens - stream.tokens + long_tokens)

    def spans(self, start: int, stop: int, _sequence_tokens: int) -> list[Span]:
        """Whole documents, and the padding at the ends of rows."""
        spans: list[Span] = []
        row, end = start // self._row_tokens, stop // self._row_tokens
        while row < end:
            number = bisect_right(self._ends, row)
            before, last = self._ends[number - 1] if number else 0, min(self._ends[number], end)
            window = self._windows.window((id(self), number), functools.partial(self._pack, number))
            spans += _window_spans(self._stream, window, row - before, last - before)
            row = last
        return spans

    def _pack(self, number: int) -> PackedWindow:
        """Pack a window."""
        first = number * self._window_tokens
        begins, lengths, numbers = self._beginning(number)
        fits = lengths <= self._row_tokens
        begins, lengths, numbers = begins[fits], lengths[fits], numbers[fits]
        rows = pack_whole(begins, lengths, self._row_tokens)
        whole = (first + int(begins[0]), first + int(begins[-1] + lengths[-1]))
        return PackedWindow(first, whole, rows, _documents(rows, begins, numbers))

    def _beginning(self, number: int) -> tuple[Numbers, Numbers, Numbers]:
        """The documents of a window, also those that are too long."""
        first = number * self._window_tokens
        return self._stream.documents_beginning(first, min(first + self._window_tokens, self._stream.tokens))

    def _count(self) -> list[Numbers]:
        """Count the rows of each window, and the documents that are too long."""
        windows = range(-(-self._stream.tokens // self._window_tokens))
        counts = []
        for _, lengths, _ in prefetch_map(self._stream.source_parts.folder, self._beginning, windows, PREFETCH_WINDOWS):
            fits = lengths <= self._row_tokens
            packed = pack_whole(np.zeros(int(fits.sum()), np.int64), lengths[fits], self._row_tokens)
            counts.append((len(packed.edges) - 1, int((~fits).sum()), int(lengths[~fits].sum())))
        return [np.ascontiguousarray(column) for column in np.array(counts, np.int64).reshape(-1, 3).T]


def _documents(rows: PackedRows, begins: Numbers, numbers: Numbers) -> Numbers:
    """The number of the document of each piece, from where the documents of the window begin."""
    return np.where(rows.starts < 0, PADDING, numbers[begins.searchsorted(rows.starts, side="right") - 1])


def _window_spans(stream: Stream, window: PackedWindow, first: int, last: int) -> Iterator[Span]:
    """Yield the pieces of rows [first, last) of a window."""
    rows = window.rows
    low, high = rows.edges[first], rows.edges[last]
    columns = (rows.starts + window.first, rows.lengths, window.documents, rows.is_end)
    for start, length, document, is_end in zip(*(column[low:high].tolist() for column in columns), strict=True):
        yield Span(stream, start, start + length, DocumentPiece(document, is_end, window.range))
