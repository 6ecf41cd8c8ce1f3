"""Finds the documents for which the fast engine cannot be trusted, because its Unicode is newer than the reference's.

Relies on nothing but the table below. A wrong answer in the other direction costs only speed: the reference engine
is right for every document.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

ByteArray = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]

# (first, last) code points that gigatoken 0.10.0 may split or normalise unlike tiktoken 0.14.0 or tokenizers 0.23.3,
# as printed by scripts/derive_unicode_gap.py. Run it again, and `--check`, for other versions of any of the three.
# fmt: off
GAP: tuple[tuple[int, int], ...] = (
    (0x007FD, 0x007FD), (0x0088F, 0x0088F), (0x00897, 0x0089F), (0x008CA, 0x008D3), (0x009FE, 0x009FE),
    (0x00C3C, 0x00C3C), (0x00C5C, 0x00C5C), (0x00CDC, 0x00CDC), (0x00D3B, 0x00D3C), (0x00EBA, 0x00EBA),
    (0x01715, 0x01715), (0x01ABF, 0x01ADD), (0x01AE0, 0x01AEB), (0x01DF6, 0x01DFA), (0x020C1, 0x020C1),
    (0x02B96, 0x02B96), (0x0A7CE, 0x0A7CF), (0x0A7D2, 0x0A7D2), (0x0A7D4, 0x0A7D4), (0x0A7F1, 0x0A7F1),
    (0x0A82C, 0x0A82C), (0x0FBC3, 0x0FBD2), (0x0FD90, 0x0FD91), (0x0FDC8, 0x0FDCE), (0x105C9, 0x105C9),
    (0x105D2, 0x105D2), (0x105DA, 0x105DA), (0x105E4, 0x105E4), (0x10940, 0x10959), (0x10D24, 0x10D27),
    (0x10D69, 0x10D6D), (0x10EAB, 0x10EAC), (0x10EC5, 0x10EC7), (0x10ED0, 0x10ED8), (0x10EFA, 0x10EFB),
    (0x10EFD, 0x10EFF), (0x10F46, 0x10F50), (0x10F82, 0x10F85), (0x11070, 0x11070), (0x1133B, 0x1133B),
    (0x11380, 0x113D0), (0x1145E, 0x1145E), (0x11839, 0x1183A), (0x11930, 0x11930), (0x11935, 0x11935),
    (0x11938, 0x11938), (0x1193D, 0x1193E), (0x11943, 0x11943), (0x119E0, 0x119E0), (0x11A34, 0x11A34),
    (0x11A47, 0x11A47), (0x11A99, 0x11A99), (0x11B60, 0x11B67), (0x11D42, 0x11D42), (0x11D44, 0x11D45),
    (0x11D97, 0x11D97), (0x11DB0, 0x11DDB), (0x11DE0, 0x11DE9), (0x11F41, 0x11F42), (0x1611E, 0x16129),
    (0x1612F, 0x1612F), (0x16D63, 0x16D6A), (0x16EA0, 0x16EB8), (0x16EBB, 0x16ED3), (0x16FF0, 0x16FF6),
    (0x187F8, 0x187FF), (0x18D09, 0x18D1E), (0x18D80, 0x18DF2), (0x1CCFA, 0x1CCFC), (0x1CEBA, 0x1CED0),
    (0x1CEE0, 0x1CEF0), (0x1E08F, 0x1E08F), (0x1E130, 0x1E136), (0x1E2AE, 0x1E2AE), (0x1E2EC, 0x1E2EF),
    (0x1E4EC, 0x1E4EF), (0x1E5EE, 0x1E5EF), (0x1E6C0, 0x1E6DE), (0x1E6E0, 0x1E6F5), (0x1E6FE, 0x1E6FF),
    (0x1F6D8, 0x1F6D8), (0x1F777, 0x1F77A), (0x1F8D0, 0x1F8D8), (0x1FA54, 0x1FA57), (0x1FA8A, 0x1FA8A),
    (0x1FA8E, 0x1FA8E), (0x1FAC8, 0x1FAC8), (0x1FACD, 0x1FACD), (0x1FAEA, 0x1FAEA), (0x1FAEF, 0x1FAEF),
    (0x1FBFA, 0x1FBFA), (0x2B73A, 0x2B73F), (0x2CEA2, 0x2CEAD), (0x323B0, 0x33479),
)
# fmt: on

_BLOCK_BYTES = 32 << 10  # a block and what is computed from it stay in the nearest caches


class _Prefixes(dict[int, "_Prefixes"]):
    """The UTF-8 spellings of the table, byte by byte; empty where whatever follows is in the table."""


def _spell(ranges: tuple[tuple[int, int], ...]) -> _Prefixes:
    root = _Prefixes()
    for first, last in ranges:
        for point in range(first, last + 1):
            node = root
            for byte in chr(point).encode():
                node = node.setdefault(byte, _Prefixes())
    return _shorten(root)


def _shorten(node: _Prefixes) -> _Prefixes:
    """Drop the last bytes where all 64 continuation bytes lead to the table."""
    for deeper in node.values():
        _shorten(deeper)
    if len(node) == 64 and not any(node.values()):
        node.clear()
    return node


_PREFIXES = _spell(GAP)


def documents_with_gap(data: ByteArray, offsets: IntArray, *, block_bytes: int = _BLOCK_BYTES) -> IntArray:
    """The sorted indices of the documents that contain a code point of GAP, each once.

    Document i is data[offsets[i]:offsets[i + 1]], and each is valid UTF-8. `block_bytes` does not change the answer.
    """
    text = data[offsets[0] : offsets[-1]]
    found = [np.empty(0, np.int64)]
    for start in range(0, text.size, block_bytes):
        block = text[start : start + block_bytes]
        found += [start + places for places in _places(block, _PREFIXES, text[start + 1 :])]
    places = np.concatenate(found) + offsets[0]
    return np.unique(np.searchsorted(offsets, places, side="right") - 1)


def _places(block: ByteArray, prefixes: _Prefixes, rest: ByteArray) -> Iterator[IntArray]:
    """Where one of the prefixes begins in a block; `rest` is the text from the block's second byte on.

    Searching the copy for one byte is memchr, which is many times faster than any pass of NumPy over the block.
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
            # The next byte where this one matches, else zero, which no prefix contains.
            yield from _places(following * matched[: following.size].view(np.uint8), deeper, rest[1:])
