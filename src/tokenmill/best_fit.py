"""Best-fit decreasing: documents go into the row with the least space that still holds them, the longest first."""

from __future__ import annotations

from bisect import bisect_left, insort

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


def whole_rows(lengths: Numbers, row_tokens: int) -> tuple[Numbers, Numbers]:
    """Pack documents into rows, and cut none. No document is empty or longer than a row.

    Returns the row of each document, ascending, and the document. So the documents of a row follow each other, and the
    first one of the next row never fits into it: the lengths in this order tell where rows begin.
    """
    order = np.argsort(-lengths, kind="stable")
    most = min(len(lengths), 2 * int(lengths.sum()) // row_tokens + 1)  # only one row can be at most half full
    pieces, _, _ = best_fit(order.tolist(), lengths[order].tolist(), 0, most, row_tokens)
    row, document, _ = np.array(pieces, np.int64).reshape(-1, 3).T
    by_row = np.argsort(row, kind="stable")
    return row[by_row], document[by_row]


def best_fit(
    names: list[int], lengths: list[int], first_row: int, rows: int, row_tokens: int
) -> tuple[list[tuple[int, int, int]], list[tuple[int, int]], list[int]]:
    """Place documents in their order, the longest first, into rows [first_row, rows).

    Returns the row, the name and the length of each; the name and the length of those that fit nowhere; and the spaces
    that are left, ascending: a space times `rows`, plus its row.
    """
    placed, homeless = [], []
    # They ascend, so that the least space is found, and the first of equal ones.
    spaces = [row_tokens * rows + row for row in range(first_row, rows)]
    for name, length in zip(names, lengths, strict=True):
        index = bisect_left(spaces, length * rows)
        if index == len(spaces):
            homeless.append((name, length))
            continue
        left = spaces.pop(index) - length * rows
        placed.append((left % rows, name, length))
        if left >= rows:
            insort(spaces, left)
    return placed, homeless, spaces
