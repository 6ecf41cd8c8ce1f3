"""Pack the documents of a window into rows of one length, so that few documents are cut.

A window is a range of consecutive grains, and its rows have exactly as many tokens as its documents. So no row is
padded, each token is in one row, and the rows of a window depend on the window only: nothing has to be saved to resume.
Documents longer than a row fill rows from their start. All other documents, and the rests of the long ones, go into the
row with the least space that still holds them, the longest first. What fits nowhere is cut to fill the gaps.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tokenmill.training.order import Numbers

# Grains of a window.
WINDOW_GRAINS = 32
# The memory for the windows of a loader that were packed last. In a full shuffle each is needed again all through the
# epoch. It holds those of over a billion tokens.
KEPT_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class PackedRows:
    """The pieces of documents in the rows of a window: row r has the pieces [edges[r], edges[r + 1]).

    Piece i is tokens [starts[i], starts[i] + lengths[i]) of the window. `is_end` tells whether its document ends there.
    """

    edges: Numbers
    starts: Numbers
    lengths: Numbers
    is_end: np.ndarray[tuple[int], np.dtype[np.bool_]]


@dataclass(frozen=True, slots=True)
class PackedWindow:
    """A range of a stream, its rows, and the number of the document of each piece."""

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
    pieces += _best_fit(begins[order].tolist(), rests[order].tolist(), row, tokens // row_tokens, row_tokens)
    ends = np.append(starts[1:], [] if is_last_cut else [tokens])
    return _as_rows(pieces, ends, tokens // row_tokens)


def _best_fit(
    starts: list[int], lengths: list[int], first_row: int, rows: int, row_tokens: int
) -> list[tuple[int, int, int]]:
    """Place pieces, the longest first, into rows [first_row, rows). Pieces that fit nowhere are cut to fill gaps."""
    pieces, homeless = [], []
    # A space times `rows`, plus its row. They ascend, so that the least space is found, and the first of equal ones.
    spaces = [row_tokens * rows + row for row in range(first_row, rows)]
    for start, length in zip(starts, lengths, strict=True):
        index = bisect_left(spaces, length * rows)
        if index == len(spaces):
            homeless.append((start, length))
            continue
        left = spaces.pop(index) - length * rows
        pieces.append((left % rows, start, length))
        if left >= rows:
            insort(spaces, left)
    for start, length in homeless:  # the largest gaps first: fewer cuts
        begin, rest = start, length
        while rest:
            space, row = divmod(spaces.pop(), rows)
            taken = min(space, rest)
            pieces.append((row, begin, taken))
            begin, rest = begin + taken, rest - taken
            if space > taken:
                insort(spaces, (space - taken) * rows + row)
    return pieces


def _as_rows(pieces: list[tuple[int, int, int]], ends: Numbers, rows: int) -> PackedRows:
    """Sort pieces by row, and by the order in which they were placed."""
    table = np.array(pieces, np.int64).reshape(-1, 3)
    table = table[np.argsort(table[:, 0], kind="stable")]
    row, starts, lengths = table.T
    edges = np.searchsorted(row, np.arange(rows + 1))
    stops = starts + lengths
    found = ends[np.minimum(np.searchsorted(ends, stops), len(ends) - 1)] if len(ends) else -1
    return PackedRows(edges, starts, lengths, stops == found)
