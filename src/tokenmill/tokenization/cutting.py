"""Cut documents before the fast engine encodes them, where `tokenizers` would cut them.

`tokenizers` separates added tokens from the text before its model sees the text, and the `Digits` step separates
digits. gigatoken does neither as `tokenizers` does. So the documents are cut here: gigatoken encodes each slice as a
document of its own, and the slices that are added tokens get their ids afterwards.

`tokenizers` looks for added tokens twice: first for those with `normalized: false`, then, in the text between them, for
the others. In each pass it takes the leftmost token, and the longest of those that begin there. The text of a special
token stays text, but it hides the tokens that overlap it.

A position before a space that follows an ASCII letter is safe: no split pattern that the fast engine is used for has a
match that crosses it or looks beyond it. The tokens of a document that is cut there are those of its pieces, unless an
added token crosses the cut.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tokenmill.tokenization.engines.protocol import Encoded

ByteArray = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]
# How a tokenizer splits ASCII digits, where gigatoken cannot: each digit by itself, or in pairs from the left.
DigitCuts = Literal["single", "pairs"]
_SAFE = re.compile(rb"[A-Za-z] ")
# How far beyond a position the next safe cut is looked for.
MAX_CUT_BYTES = 1 << 10


@dataclass(frozen=True, slots=True)
class AddedMatch:
    """The text of an added token: the document's bytes from `start` to `stop` become the token `id`."""

    start: int
    stop: int
    id: int


class Cutter:
    """Cuts documents at added tokens and at digits, and puts the encoded slices together."""

    def __init__(self, added_tokens: list[dict[str, Any]], digits: DigitCuts | None) -> None:
        self._digits = digits
        plain = {token["content"].encode(): token["id"] for token in added_tokens if not token["special"]}
        passes = [[token for token in added_tokens if token.get("normalized", True) is late] for late in (False, True)]
        # A pass without a plain token changes nothing.
        self._passes = [_alternatives(tokens) for tokens in passes if not all(token["special"] for token in tokens)]
        self._ids = plain
        self._any_plain = re.compile(b"|".join(map(re.escape, plain))) if plain else None

    @classmethod
    def of(cls, tokens: dict[str, int]) -> Cutter:
        """A cutter at the spellings of these tokens."""
        flags = {"special": False, "normalized": False}
        return cls([{"content": text, "id": token, **flags} for text, token in tokens.items()], None)

    def encode(self, data: ByteArray, offsets: IntArray, encode: Callable[[IntArray], Encoded]) -> Encoded:
        """The tokens of each document; `encode` returns those of the slices between the given offsets of `data`."""
        matches = self._find_together(data, offsets)
        if matches is None:
            found = [(match.start, match.stop, match.id) for match in self._find_added(data, offsets)]
            matches = np.array(found, np.int64).reshape(-1, 3)
        edges = matches[:, :2].reshape(-1)
        cuts = self._digit_cuts(data, offsets, edges)
        if not len(edges) and not len(cuts):
            return encode(offsets)
        slices = _merged(offsets, edges, cuts)
        encoded = encode(slices)
        if len(matches):
            encoded = _replace_slices(encoded, np.searchsorted(slices, matches[:, 0]), matches[:, 2])
        return Encoded(encoded.tokens, encoded.offsets[np.searchsorted(slices, offsets)])

    def _find_together(self, data: ByteArray, offsets: IntArray) -> IntArray | None:
        """The start, the stop and the id of each added token, from one search through all documents.

        None if there are two passes, or if a match is at the joint of two documents and may hide another one.
        """
        if len(self._passes) != 1:
            return None
        ids = self._ids
        found = [(*match.span(), ids.get(match.group(), -1)) for match in self._passes[0].finditer(data.data)]
        matches = np.array(found, np.int64).reshape(-1, 3)
        first = np.searchsorted(offsets, matches[:, 0], side="right")
        last = np.searchsorted(offsets, matches[:, 1], side="left")
        return None if (first != last).any() else matches[matches[:, 2] >= 0]  # without the special ones

    def _find_added(self, data: ByteArray, offsets: IntArray) -> Iterator[AddedMatch]:
        """The added tokens of all documents, in order."""
        if self._any_plain is None:
            return
        text = data.data
        # This pattern ignores the ends of documents, special tokens and the order of passes: it finds candidates only.
        spans = np.array([match.span() for match in self._any_plain.finditer(text)], np.int64).reshape(-1, 2)
        first = np.searchsorted(offsets, spans[:, 0], side="right") - 1
        last = np.searchsorted(offsets, spans[:, 1], side="left") - 1
        candidates = sorted({d for a, b in zip(first.tolist(), last.tolist(), strict=True) for d in range(a, b + 1)})
        for document in candidates:
            yield from self._find_between(text, int(offsets[document]), int(offsets[document + 1]), 0)

    def _find_between(self, text: memoryview, start: int, stop: int, number: int) -> Iterator[AddedMatch]:
        """The added tokens of one slice, from one pass on: those of this pass, and of later passes between them."""
        if number == len(self._passes):
            return
        for match in self._passes[number].finditer(text, start, stop):
            token = self._ids.get(match.group())
            if token is None:  # a special token
                continue
            yield from self._find_between(text, start, match.start(), number + 1)
            start = match.end()
            yield AddedMatch(match.start(), start, token)
        yield from self._find_between(text, start, stop, number + 1)

    def _digit_cuts(self, data: ByteArray, offsets: IntArray, edges: IntArray) -> IntArray:
        """Where digits are cut. Digits inside of added tokens are not: `edges` are those tokens' starts and stops."""
        if self._digits is None:
            return edges[:0]
        digits = np.flatnonzero((data - np.uint8(ord("0"))) < 10)
        if len(edges):
            digits = digits[np.searchsorted(edges, digits, side="right") % 2 == 0]
        if self._digits == "single":
            return np.concatenate([digits, digits + 1])
        # No cut before the first digit: how white space splits depends on what follows it.
        begins = np.ones(len(digits), np.bool_)
        begins[1:] = np.diff(digits) > 1
        begins |= np.isin(digits, np.concatenate([offsets, edges]))
        indices = np.arange(len(digits))
        since_start = indices - np.maximum.accumulate(np.where(begins, indices, 0))
        return np.asarray(digits[(since_start % 2 == 0) & ~begins])


def next_safe_cut(text: ByteArray, position: int) -> int | None:
    """The first safe cut at or after a position greater than 0, if there is one within MAX_CUT_BYTES."""
    match = _SAFE.search(text[position - 1 : position + MAX_CUT_BYTES].tobytes())
    return None if match is None else position + match.start()


def crosses_safe_cuts(added_tokens: Iterable[str]) -> bool:
    """Whether a safe cut may be inside one of these tokens."""
    return any(_SAFE.search(text.encode()) for text in added_tokens)


def cut_long_documents(data: ByteArray, offsets: IntArray, piece_bytes: int) -> IntArray:
    """The offsets, and safe cuts that divide long documents into pieces of about this size."""
    positions = np.arange(int(offsets[0]) + piece_bytes, int(offsets[-1]), piece_bytes)
    following = offsets[np.searchsorted(offsets, positions)]
    # The end of a document is a cut already, and a document that begins nearby needs no other.
    inside = positions[following - positions > MAX_CUT_BYTES]
    cuts = [cut for cut in (next_safe_cut(data, position) for position in inside.tolist()) if cut is not None]
    return np.union1d(offsets, np.array(cuts, np.int64))


def _alternatives(tokens: list[dict[str, Any]]) -> re.Pattern[bytes]:
    """A pattern that matches the longest of the tokens that begin at a position."""
    texts = sorted((token["content"].encode() for token in tokens), key=len, reverse=True)
    return re.compile(b"|".join(map(re.escape, texts)))


def _merged(*positions: IntArray) -> IntArray:
    """All positions in order, each once. Each array is in order, so that sorting is merging."""
    every = np.sort(np.concatenate(positions), kind="stable")
    return np.asarray(every[np.append(True, every[1:] > every[:-1])])


def _replace_slices(encoded: Encoded, slices: IntArray, ids: IntArray) -> Encoded:
    """Replace the tokens of some slices, which are sorted, by one token each."""
    lengths, first = np.diff(encoded.offsets), encoded.offsets[slices]
    removed = np.zeros(len(encoded.tokens) + 1, np.int64)
    removed[first + 1] += 1
    removed[encoded.offsets[slices + 1]] -= 1
    tokens = encoded.tokens.copy()
    tokens[first] = ids
    lengths[slices] = 1
    return Encoded(tokens[np.cumsum(removed[:-1]) == 0], np.concatenate([[0], np.cumsum(lengths)]))
