"""Pack the documents of a window into rows of one length, so that few documents are cut, or none.

The rows of a window depend on the window only: nothing has to be saved to resume. Documents go into the row with the
least space that still holds them, the longest first.

`pack` gives rows with exactly as many tokens as the window. So no row is padded, and each token is in one row.
Documents longer than a row fill rows from their start, and only their rests are packed. What fits nowhere is cut to
fill the gaps. `pack_whole` cuts nothing: it opens as many rows as are needed, and pads them.
"""

from __future__ import annotations

import threading
from bisect import insort
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tokenmill.best_fit import best_fit, whole_rows
from tokenmill.training.order import Numbers

# Grains of a window.
WINDOW_GRAINS = 32
# Sequences of a window of whole documents. The last rows of a window are not full: of longer windows less is padding.
WINDOW_SEQUENCES = 256
# The memory for the windows of a loader that were packed last. In a full shuffle each is needed again all through the
# epoch. It holds those of over a billion tokens.
KEPT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class PackedRows:
    """The pieces of documents in the rows of a window: row r has the pieces [edges[r], edges[r + 1]).

    Piece i is tokens [starts[i], starts[i] + lengths[i]) of the window. `is_end` tells whether its document ends there.
    Padding at the end of a row is a piece with the start -1.
    """

    edges: Numbers
    starts: Numbers
    lengths: Numbers
    is_end: np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class PackedWindow:
    """The first token of a window, the range that its rows read, its rows, and the number of each piece's document."""

    first: int
    range: tuple[int, int]
    rows: PackedRows
    documents: Numbers

    @property
    def bytes(self) -> int:
        """The size of the arrays."""
        rows = self.rows
        arrays = (rows.edges, rows.starts, rows.lengths, rows.is_end, self.documents)
        return sum(array.nbytes for array in arrays)


class PackedWindows:
    """The windows of all sources of a loader that were used last, in bounded memory. Several threads may use it."""

    def __init__(self) -> None:
        self.bytes = 0
        self._packed: OrderedDict[tuple[int, ...], PackedWindow] = OrderedDict()
        self._lock = threading.Lock()

    def window(self, key: tuple[int, ...], pack_it: Callable[[], PackedWindow]) -> PackedWindow:
        """A window, which is packed if it is not in memory."""
        with self._lock:
            if key in self._packed:
                self._packed.move_to_end(key)
                return self._packed[key]
        packed = pack_it()
        with self._lock:
            if key not in self._packed:
                self._packed[key] = packed
                self.bytes += packed.bytes
            while self.bytes > KEPT_BYTES and len(self._packed) > 1:
                self.bytes -= self._packed.popitem(last=False)[1].bytes
        return packed


def pack(starts: Numbers, tokens: int, row_tokens: int, *, is_last_cut: bool) -> PackedRows:
    """Pack documents into rows.

    Args:
        starts: The position of each document in the window, from 0 on, ascending. No document is empty.
        tokens: The tokens of the window, a multiple of `row_tokens`.
        row_tokens: The tokens of a row.
        is_last_cut: Whether the last document goes on after the window.
    """
    lengths = np.diff(starts, append=tokens)
    full = lengths // row_tokens
    pieces: list[tuple[int, int, int]] = []  # row, start, length
    row = 0
    for document in np.flatnonzero(full).tolist():
        start = int(starts[document])
        for _ in range(int(full[document])):
            pieces.append((row, start, row_tokens))
            row, start = row + 1, start + row_tokens
    rests = lengths % row_tokens
    begins = starts + lengths - rests
    order = np.argsort(-rests, kind="stable")
    order = order[rests[order] > 0]
    rows = tokens // row_tokens
    placed, homeless, spaces = best_fit(begins[order].tolist(), rests[order].tolist(), row, rows, row_tokens)
    pieces += placed
    for start, length in homeless:  # the largest gaps first: fewer cuts
        begin, rest = start, length
        while rest:
            space, row = divmod(spaces.pop(), rows)
            taken = min(space, rest)
            pieces.append((row, begin, taken))
            begin, rest = begin + taken, rest - taken
            if space > taken:
                insort(spaces, (space - taken) * rows + row)
    ends = np.append(starts[1:], [] if is_last_cut else [tokens])
    edges, begins, lengths = _by_row(np.array(pieces, np.int64).reshape(-1, 3), rows)
    stops = begins + lengths
    found = ends[np.minimum(np.searchsorted(ends, stops), len(ends) - 1)] if len(ends) else -1
    return PackedRows(edges, begins, lengths, stops == found)


def pack_whole(starts: Numbers, lengths: Numbers, row_tokens: int) -> PackedRows:
    """Pack documents into as few rows as best-fit needs, and pad these. No document is empty or longer than a row."""
    row, document = whole_rows(lengths, row_tokens)
    gaps = row_tokens - np.bincount(row, lengths[document]).astype(np.int64)
    padded = np.flatnonzero(gaps)
    table = [np.append(row, padded), np.append(starts[document], -np.ones_like(padded))]
    edges, begins, lengths = _by_row(np.stack([*table, np.append(lengths[document], gaps[padded])], axis=1), len(gaps))
    return PackedRows(edges, begins, lengths, np.ones(len(begins), np.bool_))


def _by_row(table: Numbers, rows: int) -> tuple[Numbers, Numbers, Numbers]:
    """The edges of rows among pieces (row, start, length), and the starts and lengths, in their order in a row."""
    row, starts, lengths = table[np.argsort(table[:, 0], kind="stable")].T
    return np.searchsorted(row, np.arange(rows + 1)), starts, lengths
