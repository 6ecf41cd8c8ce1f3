"""Finds the documents that must go to the reference engine, because the fast engine's Unicode is newer.

Relies on nothing but the tables below. A character too many in them costs only speed: the reference engine is right
for every document.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt

ByteArray = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]
Ranges = tuple[tuple[int, int], ...]

# Derived by scripts/derive_unicode_gap.py for gigatoken 0.10.0 (Unicode 17) against tiktoken 0.14.0 (Unicode 16) and
# tokenizers 0.23.3 (Unicode 16 in its regexes, 9 in its NFC). Ranges are (first, last). For other versions of any of
# the three, run the script; with --check it fails if something is missing here.
# fmt: off

# Letters, numbers, marks or case: what the split regexes of all schemes ask for. Enough for tiktoken's encodings.
SPLIT_GAP: Ranges = (
    (0x88F, 0x88F), (0xC5C, 0xC5C), (0xCDC, 0xCDC), (0x1ACF, 0x1ADD), (0x1AE0, 0x1AEB), (0xA7CE, 0xA7CF),
    (0xA7D2, 0xA7D2), (0xA7D4, 0xA7D4), (0xA7F1, 0xA7F1), (0x10940, 0x10959), (0x10EC5, 0x10EC7), (0x10EFA, 0x10EFB),
    (0x11B60, 0x11B67), (0x11DB0, 0x11DDB), (0x11DE0, 0x11DE9), (0x16EA0, 0x16EB8), (0x16EBB, 0x16ED3),
    (0x16FF2, 0x16FF6), (0x187F8, 0x187FF), (0x18D09, 0x18D1E), (0x18D80, 0x18DF2), (0x1E6C0, 0x1E6DE),
    (0x1E6E0, 0x1E6F5), (0x1E6FE, 0x1E6FF), (0x2B73A, 0x2B73F), (0x2CEA2, 0x2CEAD), (0x323B0, 0x33479),
)

# Combining classes and compositions: for a tokenizer.json that normalizes to NFC.
NFC_GAP: Ranges = (
    (0x7FD, 0x7FD), (0x897, 0x89F), (0x8CA, 0x8D3), (0x9FE, 0x9FE), (0xC3C, 0xC3C), (0xD3B, 0xD3C), (0xEBA, 0xEBA),
    (0x1715, 0x1715), (0x1ABF, 0x1ADD), (0x1AE0, 0x1AEB), (0x1DF6, 0x1DFA), (0xA82C, 0xA82C), (0x105C9, 0x105C9),
    (0x105D2, 0x105D2), (0x105DA, 0x105DA), (0x105E4, 0x105E4), (0x10D24, 0x10D27), (0x10D69, 0x10D6D),
    (0x10EAB, 0x10EAC), (0x10EFA, 0x10EFB), (0x10EFD, 0x10EFF), (0x10F46, 0x10F50), (0x10F82, 0x10F85),
    (0x11070, 0x11070), (0x1133B, 0x1133B), (0x11382, 0x11385), (0x1138B, 0x1138B), (0x1138E, 0x1138E),
    (0x11390, 0x11391), (0x113B8, 0x113B8), (0x113BB, 0x113BB), (0x113C2, 0x113C2), (0x113C5, 0x113C5),
    (0x113C7, 0x113C9), (0x113CE, 0x113D0), (0x1145E, 0x1145E), (0x11839, 0x1183A), (0x11930, 0x11930),
    (0x11935, 0x11935), (0x11938, 0x11938), (0x1193D, 0x1193E), (0x11943, 0x11943), (0x119E0, 0x119E0),
    (0x11A34, 0x11A34), (0x11A47, 0x11A47), (0x11A99, 0x11A99), (0x11D42, 0x11D42), (0x11D44, 0x11D45),
    (0x11D97, 0x11D97), (0x11F41, 0x11F42), (0x1611E, 0x16129), (0x1612F, 0x1612F), (0x16D63, 0x16D63),
    (0x16D67, 0x16D6A), (0x16FF0, 0x16FF1), (0x1E08F, 0x1E08F), (0x1E130, 0x1E136), (0x1E2AE, 0x1E2AE),
    (0x1E2EC, 0x1E2EF), (0x1E4EC, 0x1E4EF), (0x1E5EE, 0x1E5EF), (0x1E6E3, 0x1E6E3), (0x1E6E6, 0x1E6E6),
    (0x1E6EE, 0x1E6EF), (0x1E6F5, 0x1E6F5),
)

# Punctuation and symbols: for DeepSeek's split, the only one that tells them from unassigned characters.
SYMBOL_GAP: Ranges = (
    (0x20C1, 0x20C1), (0x2B96, 0x2B96), (0xFBC3, 0xFBD2), (0xFD90, 0xFD91), (0xFDC8, 0xFDCE), (0x10ED0, 0x10ED8),
    (0x1CCFA, 0x1CCFC), (0x1CEBA, 0x1CED0), (0x1CEE0, 0x1CEF0), (0x1F6D8, 0x1F6D8), (0x1F777, 0x1F77A),
    (0x1F8D0, 0x1F8D8), (0x1FA54, 0x1FA57), (0x1FA8A, 0x1FA8A), (0x1FA8E, 0x1FA8E), (0x1FAC8, 0x1FAC8),
    (0x1FACD, 0x1FACD), (0x1FAEA, 0x1FAEA), (0x1FAEF, 0x1FAEF), (0x1FBFA, 0x1FBFA),
)
# fmt: on

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
