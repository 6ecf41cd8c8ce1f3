"""Finds the documents that must go to the reference engine, because the fast engine's Unicode is newer.

Relies on nothing but its tables. A character too many in them costs only speed: the reference engine is right
for every document.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

ByteArray = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]
Ranges = tuple[tuple[int, int], ...]


def _tables() -> dict[str, Ranges]:
    """The tables of `unicode_gap.txt`, which says what each is for: a name and a colon, then code points and ranges."""
    text = importlib.resources.files("tokenmill.tokenization").joinpath("unicode_gap.txt").read_text("ascii")
    words = (word for line in text.splitlines() if not line.startswith("#") for word in line.split())
    tables: dict[str, list[tuple[int, int]]] = {}
    for word in words:
        if word.endswith(":"):
            points = tables.setdefault(word[:-1], [])
        else:
            first, _, last = word.partition("-")
            points.append((int(first, 16), int(last or first, 16)))
    return {name: tuple(points) for name, points in tables.items()}


_TABLES = _tables()
SPLIT_GAP, NFC_GAP, SYMBOL_GAP, NUMBERS = (_TABLES[n] for n in ("SPLIT_GAP", "NFC_GAP", "SYMBOL_GAP", "NUMBERS"))
GAP: Ranges = SPLIT_GAP + NFC_GAP + SYMBOL_GAP

_BLOCK_BYTES = 64 << 10  # a block and what is computed from it stay in the second-level cache


class _Prefixes(dict[int, "_Prefixes"]):
    """UTF-8 spellings byte by byte, shared beginnings once; empty where a spelling ends."""


def documents_with_gap(
    data: ByteArray, offsets: IntArray, table: Ranges = GAP, *, block_bytes: int = _BLOCK_BYTES
) -> IntArray:
    """The sorted indices of the documents that contain a code point of the table, each once.

    Document i is data[offsets[i]:offsets[i + 1]], each valid UTF-8. A smaller table than GAP, where it is enough, is
    scanned two to three times faster. `block_bytes` does not change the answer.
    """
    prefixes = _spell(table)
    text = data[offsets[0] : offsets[-1]]
    found = [np.empty(0, np.int64)]
    for start in range(0, text.size, block_bytes):
        block = text[start : start + block_bytes]
        found += [start + places for places in _places(block, text[start + 1 :], prefixes)]
    places = np.concatenate(found) + offsets[0]
    return np.unique(np.searchsorted(offsets, places, side="right") - 1)


def _places(block: ByteArray, rest: ByteArray, prefixes: _Prefixes) -> Iterator[IntArray]:
    """Where one of the prefixes begins in a block; `rest` is the text from the block's second byte on.

    `byte in copy` is memchr, many times faster than a pass of NumPy: those are kept for the rare bytes that are there.
    """
    copy = block.tobytes()
    if copy.isascii():
        return
    for byte, deeper in prefixes.items():
        if byte not in copy:
            continue
        matched = block == byte
        if not deeper:
            yield np.flatnonzero(matched)
        else:
            following = rest[: block.size]
            # The next byte where this one matched, elsewhere zero, which no prefix contains.
            next_block = following * matched[: following.size].view(np.uint8)
            yield from _places(next_block, rest[1:], deeper)


@cache
def _spell(table: Ranges) -> _Prefixes:
    root = _Prefixes()
    for first, last in table:
        for point in range(first, last + 1):
            node = root
            for byte in chr(point).encode():
                node = node.setdefault(byte, _Prefixes())
    return _shorten(root)


def _shorten(node: _Prefixes) -> _Prefixes:
    """End a spelling early where each of the 64 bytes that can follow is in the table."""
    for deeper in node.values():
        _shorten(deeper)
    if len(node) == 64 and not any(node.values()):
        node.clear()
    return node
