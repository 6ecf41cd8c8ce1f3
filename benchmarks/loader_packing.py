"""How packings cut, pad and drop the documents of a store, for rows of 2,048 and 8,192 tokens.

The packings of nanochat (nanochat/dataloader.py) and OLMo-core (olmo_core/data/utils.py) are stated here again:

    concat     the stream is cut into rows
    best-fit   tokenmill's: windows of some grains, each with exactly as many rows as its tokens fill
    whole      tokenmill's: windows of whole documents in padded rows; a document longer than a row is dropped
    nanochat   a buffer of 1,000 documents; a row takes the longest one that fits, again and again, and if none fits,
               the start of the shortest one: the rest of that one is dropped
    OLMo-core  with `fragment`: documents are cut to rows at most, and go, the longest first, into the row with the
               least space that holds them; rows that are not full are padded

The documents that are in nanochat's buffer at the end of the store are not counted.
"""

from __future__ import annotations

import argparse
import time
from bisect import bisect_left, bisect_right, insort
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

import tokenmill
from tokenmill.training.packing import WINDOW_GRAINS, WINDOW_SEQUENCES, pack, pack_whole
from tokenmill.training.reader import DEFAULT_GRAIN

# Windows of packing that are compared, in grains.
WINDOWS = (8, 32, 128)
BUFFER_DOCUMENTS = 1000
Numbers = npt.NDArray[np.int64]


class Packed(NamedTuple):
    """What a packing did: documents cut that fit into a row, tokens of padding, tokens dropped, and rows."""

    cut: int
    padding: int
    dropped: int
    rows: int


def concat(lengths: Numbers, row: int) -> Packed:
    """Cut the stream into rows."""
    ends = np.cumsum(lengths)
    is_cut = (ends - lengths) // row != (ends - 1) // row
    return Packed(int((is_cut & (lengths <= row)).sum()), 0, 0, int(ends[-1]) // row)


def best_fit(lengths: Numbers, row: int, grains: int) -> Packed:
    """Pack window after window, as the loader does."""
    ends = np.cumsum(lengths)
    cut = _cut_in_windows(ends - lengths, ends, grains * DEFAULT_GRAIN, row)
    return Packed(cut, 0, 0, int(ends[-1]) // row)


def whole(lengths: Numbers, row: int) -> Packed:
    """Pack window after window of the documents that fit, as the loader does."""
    window = (np.cumsum(lengths) - lengths) // (WINDOW_SEQUENCES * row)
    rows = 0
    for number in np.unique(window).tolist():
        own = lengths[(window == number) & (lengths <= row)]
        rows += len(pack_whole(np.zeros_like(own), own, row).edges) - 1
    packed = int(lengths[lengths <= row].sum())
    return Packed(0, rows * row - packed, int(lengths.sum()) - packed, rows)


def nanochat(lengths: Numbers, row: int) -> Packed:
    """Fill rows from a buffer. The start of the shortest document fills the last gap, its rest is dropped."""
    waiting = iter(lengths.tolist())
    buffer = sorted(length for length, _ in zip(waiting, range(BUFFER_DOCUMENTS), strict=False))
    cut = dropped = rows = 0
    while len(buffer) >= BUFFER_DOCUMENTS:  # the last documents fill no buffer
        space = row
        while space and buffer:
            index = bisect_right(buffer, space) - 1
            length = buffer.pop(max(index, 0))
            if index < 0:
                cut += length <= row
                dropped += length - space
            space -= min(length, space)
            following = next(waiting, None)
            if following is not None:
                insort(buffer, following)
        rows += 1
    return Packed(cut, 0, dropped, rows)


def olmo(lengths: Numbers, row: int) -> Packed:
    """Best-fit decreasing over all documents. Rows that are not full are padded."""
    full = int((lengths // row).sum())
    rests = lengths % row
    spaces: list[int] = []
    rows = full
    for length in np.sort(rests[rests > 0])[::-1].tolist():
        index = bisect_left(spaces, length)
        rows += index == len(spaces)
        space = spaces.pop(index) if index < len(spaces) else row
        if space > length:
            insort(spaces, space - length)
    return Packed(0, sum(spaces), 0, rows)


def measure_packing(_: argparse.Namespace, store: str) -> tuple[dict[str, Any], list[str]]:
    """Pack the documents of a store in several ways, and print a table."""
    lengths = np.concatenate([np.diff(part.offsets) for part in tokenmill.open(store).parts()])
    lengths = lengths[lengths > 0]
    figures: dict[str, Any] = {}
    print("| row | packing | padding, % | tokens dropped, % | documents cut, % | ms for a million tokens |")
    print("| ---: | --- | ---: | ---: | ---: | ---: |")
    for row in (2048, 8192):
        packings: dict[str, Any] = {"concat": lambda row=row: concat(lengths, row)}
        for grains in WINDOWS:
            name = f"best-fit, {grains} grains{' (default)' * (grains == WINDOW_GRAINS)}"
            packings[name] = lambda row=row, grains=grains: best_fit(lengths, row, grains)
        packings |= {
            "whole": lambda row=row: whole(lengths, row),
            "nanochat": lambda row=row: nanochat(lengths, row),
            "OLMo-core": lambda row=row: olmo(lengths, row),
        }
        fitting = int((lengths <= row).sum())
        for name, apply in packings.items():
            begun = time.process_time()
            found = apply()
            milliseconds = 1e9 * (time.process_time() - begun) / int(lengths.sum())
            used = int(lengths.sum()) if name in {"OLMo-core", "whole"} else found.rows * row + found.dropped
            padding, dropped, cut = found.padding / (found.rows * row), found.dropped / used, found.cut / fitting
            figures[f"{row} {name}"] = found._asdict() | {"milliseconds": milliseconds}
            print(
                f"| {row:,} | {name} | {padding:.2%} | {dropped:.1%} | {cut:.1%} | {milliseconds:.0f} |".replace(
                    "%", ""
                )
            )
    return figures, []


def _cut_in_windows(starts: Any, ends: Any, window: int, row: int) -> int:
    """How many documents that fit into a row are cut, also at the edges of windows."""
    cut = 0
    for low in range(0, (int(ends[-1]) - 1) // DEFAULT_GRAIN * DEFAULT_GRAIN, window):
        high = min(low + window, (int(ends[-1]) - 1) // DEFAULT_GRAIN * DEFAULT_GRAIN)
        inside = slice(np.searchsorted(ends, low, side="right"), np.searchsorted(starts, high))
        begins = np.maximum(starts[inside] - low, 0)
        rows = pack(begins, high - low, row, is_last_cut=bool(ends[inside][-1] > high))
        pieces = np.bincount(np.searchsorted(begins, rows.starts, side="right") - 1, minlength=len(begins))
        is_whole = (pieces == 1) & (starts[inside] >= low) & (ends[inside] <= high)
        cut += int((~is_whole & (ends[inside] - starts[inside] <= row)).sum())
    return cut
