"""The audit: a share of the text that the fast engine has encoded is encoded again by the reference.

Documents are seen as pieces of about PIECE_BYTES. Pieces are drawn by a keyed hash of the batch, so every byte is as
likely to be audited as any other, whatever the size of its document. A short document is one piece. A long one is cut
before a space that follows an ASCII letter: no split pattern that the fast engine is used for has a match that crosses
such a cut or looks beyond it, so the tokens of a piece are a part of the document's tokens. Where a document has no
such space, or a vocabulary has an added token that may cross the cut, both engines encode the piece by itself.
"""

from __future__ import annotations

import itertools
import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import EngineMismatch
from tokenmill.tokenizers import document_hash
from tokenmill.tokenizers.token_lengths import Spelling

if TYPE_CHECKING:
    from tokenmill.tokenizers.engines.protocol import Encoded, Engine, Tokens
    from tokenmill.tokenizers.spec import TokenizerSpec

ByteArray = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]

AUDIT_SHARE = 1 / 1000
"""The share of the text that is encoded again by the reference. With gpt2 and English text this takes 2.4 % of the time
of encoding if the text is new to the fast engine's word cache, and 9 % if every word of it is known there."""

FIRST_AUDIT_BYTES = 256 << 10
"""What is audited before the share counts, so that the first documents of a process are audited most."""

PIECE_BYTES = 4 << 10
"""The size of a piece, but for the way to the next cut."""

MAX_CUT_BYTES = 1 << 10
"""How far away the next cut may be."""

KEY_BYTES = 4 << 10
"""How many bytes of a batch, at its start and at its end, decide which pieces are drawn."""

_CUT = re.compile(rb"[A-Za-z] ")


class MismatchAt(EngineMismatch):
    """An audit failed; `position` is the document's place in the batch."""

    def __init__(self, position: int) -> None:
        super().__init__("gigatoken and the reference gave different tokens for one document")
        self.position = position


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents and their tokens: document i is data[offsets[i]:offsets[i + 1]].

    The documents in `apart` have the reference's tokens already.
    """

    encoded: Encoded
    data: ByteArray
    offsets: IntArray
    apart: IntArray


@dataclass(frozen=True, slots=True)
class AuditSlice:
    """Text of a document from `start` on; `is_cut` if its tokens are a part of the document's."""

    document: int
    start: int
    text: bytes
    is_cut: bool
    is_end: bool


class Audit:
    """Draws what is audited of each batch, and compares it."""

    def __init__(self, spec: TokenizerSpec, content: bytes) -> None:
        self._credit = float(FIRST_AUDIT_BYTES)
        self._spelling = Spelling(spec, content)

    def check(self, batch: Batch, fast: Engine, reference: Engine) -> None:
        """Raise MismatchAt for a document whose tokens are not the reference's."""
        pieces = [self._piece(batch, document, cell) for document, cell in self._draw(batch)]
        if not pieces:
            return
        text = pa.array([piece.text for piece in pieces], pa.large_binary()).cast(pa.large_string())
        expected = reference.encode(text)
        tokens = self._tokens(batch, pieces, fast, text)
        for place, piece in enumerate(pieces):
            right = expected.document(place)
            given = tokens[place] if piece.is_end or not piece.is_cut else tokens[place][: len(right)]
            if not np.array_equal(given, right):
                raise MismatchAt(piece.document)

    def _draw(self, batch: Batch) -> list[tuple[int, int]]:
        """Documents, and which of its pieces each of them gives, in order. What is drawn is taken from the credit."""
        sizes = np.diff(batch.offsets)
        self._credit += AUDIT_SHARE * float(sizes.sum())
        sizes[batch.apart] = 0
        cells = -(-sizes // PIECE_BYTES)
        last = np.cumsum(cells)
        if self._credit <= 0 or not len(last) or not last[-1]:
            return []
        drawn = _drawn(batch.data, int(last[-1]), self._credit * float(last[-1]) / float(sizes.sum()))
        documents = np.searchsorted(last, drawn, side="right")
        drawn -= last[documents] - cells[documents]
        spent = np.cumsum(np.minimum(sizes[documents] - drawn * PIECE_BYTES, PIECE_BYTES))
        count = 1 + int(np.searchsorted(spent, self._credit))  # the last one may overdraw it
        self._credit -= float(spent[:count][-1])
        return sorted(zip(documents[:count].tolist(), drawn[:count].tolist(), strict=True))

    def _piece(self, batch: Batch, document: int, cell: int) -> AuditSlice:
        text = batch.data[batch.offsets[document] : batch.offsets[document + 1]]
        first, last = cell * PIECE_BYTES, min((cell + 1) * PIECE_BYTES, len(text))
        is_end = last == len(text)
        if first == 0 and is_end:
            return AuditSlice(document, 0, text.tobytes(), is_cut=True, is_end=True)
        start = _cut(text, first) if first else 0
        stop = last if is_end else _cut(text, last)
        if start is not None and stop is not None and self._is_comparable(text, start):
            return AuditSlice(document, start, text[start:stop].tobytes(), is_cut=True, is_end=is_end)
        start, stop = _character(text, first), _character(text, last)
        return AuditSlice(document, start, text[start:stop].tobytes(), is_cut=False, is_end=is_end)

    def _is_comparable(self, text: ByteArray, start: int) -> bool:
        """Whether it is known which tokens of a document those of a piece are."""
        return self._spelling.can_cut and (start == 0 or self._spelling.is_exact(text[:start]))

    def _tokens(self, batch: Batch, pieces: list[AuditSlice], fast: Engine, text: pa.LargeStringArray) -> list[Tokens]:
        """What the fast engine gave for each piece, from its start on: in its document, or by itself."""
        alone = [place for place, piece in enumerate(pieces) if not piece.is_cut]
        encoded = fast.encode(text.take(pa.array(alone, pa.int64()))) if alone else None
        given: dict[int, Tokens] = {}
        if encoded is not None:
            given = {place: encoded.document(number) for number, place in enumerate(alone)}
        cut = [place for place in range(len(pieces)) if place not in given]
        for document, group in itertools.groupby(cut, lambda place: pieces[place].document):
            places, tokens = list(group), batch.encoded.document(document)
            given |= zip(places, self._from(tokens, [pieces[place].start for place in places]), strict=True)
        return [given[place] for place in range(len(pieces))]

    def _from(self, tokens: Tokens, starts: list[int]) -> list[Tokens]:
        """The tokens from each of some bytes of their document on; none where no token begins."""
        if not any(starts):
            return [tokens]
        indices = self._spelling.token_indices(tokens, np.array(starts, np.int64)).tolist()
        return [tokens[index:] if index >= 0 else tokens[:0] for index in indices]


def _drawn(data: ByteArray, cells: int, wanted: float) -> IntArray:
    """About as many different numbers below `cells` as are wanted, which the batch decides; all of them if so many."""
    if wanted >= cells:
        return np.arange(cells)
    start, end = zlib.crc32(data[:KEY_BYTES].tobytes()), zlib.crc32(data[-KEY_BYTES:].tobytes())
    rows = np.arange(int(wanted) + 1, dtype=np.uint64)
    hashes = document_hash.document_keys(start << 32 | end, np.zeros(1, np.uint32), rows)
    drawn = (hashes % np.uint64(cells)).astype(np.int64)
    _, places = np.unique(drawn, return_index=True)
    return np.asarray(drawn[np.sort(places)])


def _cut(text: ByteArray, position: int) -> int | None:
    """The first safe cut at or after a byte that is not the first, if one is near."""
    found = _CUT.search(text[position - 1 : position + MAX_CUT_BYTES].tobytes())
    return None if found is None else position + found.start()


def _character(text: ByteArray, position: int) -> int:
    """The first byte of a character at or after a byte."""
    while position < len(text) and text[position] & 0xC0 == 0x80:
        position += 1
    return position
