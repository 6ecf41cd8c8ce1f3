"""The audit: the reference encodes again a fraction of the text that the fast engine has encoded.

Documents are divided into cells of CELL_BYTES. A keyed hash of the batch draws cells, so every byte is equally likely
to be audited, whatever the size of its document. A short document is one cell. In a long document, the audited slice is
cut at a safe position (see cutting), so the tokens of the slice are a part of the document's tokens. If there is no
such position nearby, or an added token of the vocabulary may cross the cut, both engines encode the slice by itself.
"""

from __future__ import annotations

import itertools
import zlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import EngineMismatch
from tokenmill.tokenization import document_hash
from tokenmill.tokenization.cutting import next_safe_cut
from tokenmill.tokenization.engines.protocol import Encoded, Engine, Tokens
from tokenmill.tokenization.spec import TokenizerSpec
from tokenmill.tokenization.token_lengths import TokenLengths

ByteArray = npt.NDArray[np.uint8]
IntArray = npt.NDArray[np.int64]

# With gpt2 and English text, this fraction takes 2.4 % of the encoding time if the words are new to the fast engine's
# cache, and 9 % if all of them are cached.
AUDIT_FRACTION = 1 / 1000
# Audited in addition at the start, so that the first documents of a process are audited most.
FIRST_AUDIT_BYTES = 256 << 10
CELL_BYTES = 4 << 10
# How many bytes at the start and at the end of a batch seed the draw.
KEY_BYTES = 4 << 10


class AuditMismatchError(EngineMismatch):
    """An audit failed; `position` is the document's index in the batch."""

    def __init__(self, position: int) -> None:
        super().__init__("gigatoken and the reference gave different tokens for one document")
        self.position = position


@dataclass(frozen=True, slots=True)
class Batch:
    """Documents and their tokens: document i is data[offsets[i]:offsets[i + 1]].

    The documents in `by_reference` were encoded by the reference, so they are not audited.
    """

    encoded: Encoded
    data: ByteArray
    offsets: IntArray
    by_reference: IntArray


@dataclass(frozen=True, slots=True)
class AuditSlice:
    """A slice of a document from byte `start`. If `is_cut`, its tokens are a part of the document's tokens."""

    document: int
    start: int
    text: bytes
    is_cut: bool
    is_end: bool


class Audit:
    """Draws slices of each batch and compares their tokens with the reference's."""

    def __init__(self, spec: TokenizerSpec, content: bytes) -> None:
        self._credit = float(FIRST_AUDIT_BYTES)
        self._token_lengths = TokenLengths(spec, content)

    def load(self) -> None:
        """Read the vocabulary's token lengths now, in the fork server, and not in every worker."""
        _ = self._token_lengths.lengths

    def check(self, batch: Batch, fast: Engine, reference: Engine) -> None:
        """Raise AuditMismatchError for a document whose tokens are not the reference's."""
        slices = [self._slice(batch, document, cell) for document, cell in self._draw(batch)]
        if not slices:
            return
        text = pa.array([part.text for part in slices], pa.large_binary()).cast(pa.large_string())
        expected = reference.encode(text)
        fast_tokens = self._fast_tokens(batch, slices, fast, text)
        for index, (part, tokens) in enumerate(zip(slices, fast_tokens, strict=True)):
            right = expected.document(index)
            compared = tokens if part.is_end or not part.is_cut else tokens[: len(right)]
            if not np.array_equal(compared, right):
                raise AuditMismatchError(part.document)

    def _draw(self, batch: Batch) -> list[tuple[int, int]]:
        """Draw cells: sorted pairs of a document and a cell's index in it. Subtracts their size from the credit."""
        sizes = np.diff(batch.offsets)
        self._credit += AUDIT_FRACTION * float(sizes.sum())
        sizes[batch.by_reference] = 0
        cells = -(-sizes // CELL_BYTES)
        last = np.cumsum(cells)
        if self._credit <= 0 or not len(last) or not last[-1]:
            return []
        drawn = _draw_cells(batch.data, int(last[-1]), self._credit * float(last[-1]) / float(sizes.sum()))
        documents = np.searchsorted(last, drawn, side="right")
        drawn -= last[documents] - cells[documents]
        spent = np.cumsum(np.minimum(sizes[documents] - drawn * CELL_BYTES, CELL_BYTES))
        count = 1 + int(np.searchsorted(spent, self._credit))  # the last cell may overdraw the credit
        self._credit -= float(spent[:count][-1])
        return sorted(zip(documents[:count].tolist(), drawn[:count].tolist(), strict=True))

    def _slice(self, batch: Batch, document: int, cell: int) -> AuditSlice:
        text = batch.data[batch.offsets[document] : batch.offsets[document + 1]]
        first, last = cell * CELL_BYTES, min((cell + 1) * CELL_BYTES, len(text))
        is_end = last == len(text)
        if first == 0 and is_end:
            return AuditSlice(document, 0, text.tobytes(), is_cut=True, is_end=True)
        start = next_safe_cut(text, first) if first else 0
        stop = last if is_end else next_safe_cut(text, last)
        if start is not None and stop is not None and self._is_comparable(text, start):
            return AuditSlice(document, start, text[start:stop].tobytes(), is_cut=True, is_end=is_end)
        start, stop = _next_character(text, first), _next_character(text, last)
        return AuditSlice(document, start, text[start:stop].tobytes(), is_cut=False, is_end=is_end)

    def _is_comparable(self, text: ByteArray, start: int) -> bool:
        """Whether the tokens of a slice from `start` can be located in the document's tokens."""
        return self._token_lengths.can_cut and (start == 0 or self._token_lengths.is_exact(text[:start]))

    def _fast_tokens(
        self, batch: Batch, slices: list[AuditSlice], fast: Engine, text: pa.LargeStringArray
    ) -> list[Tokens]:
        """The fast engine's tokens from the start of each slice: those of its document, or of the slice by itself."""
        alone = [index for index, part in enumerate(slices) if not part.is_cut]
        tokens_by_slice: dict[int, Tokens] = {}
        if alone:
            encoded = fast.encode(text.take(pa.array(alone, pa.int64())))
            tokens_by_slice = {index: encoded.document(number) for number, index in enumerate(alone)}
        cut = [index for index in range(len(slices)) if index not in tokens_by_slice]
        for document, group in itertools.groupby(cut, lambda index: slices[index].document):
            indices, tokens = list(group), batch.encoded.document(document)
            starts = [slices[index].start for index in indices]
            tokens_by_slice |= zip(indices, self._tokens_from(tokens, starts), strict=True)
        return [tokens_by_slice[index] for index in range(len(slices))]

    def _tokens_from(self, tokens: Tokens, starts: list[int]) -> list[Tokens]:
        """The tokens from each start byte of their document; empty where no token begins."""
        if not any(starts):
            return [tokens]
        indices = self._token_lengths.token_indices(tokens, np.array(starts, np.int64)).tolist()
        return [tokens[index:] if index >= 0 else tokens[:0] for index in indices]


def _draw_cells(data: ByteArray, cells: int, wanted: float) -> IntArray:
    """About `wanted` distinct cells below `cells`, seeded by the content of the batch; all cells if that many."""
    if wanted >= cells:
        return np.arange(cells)
    start, end = zlib.crc32(data[:KEY_BYTES].tobytes()), zlib.crc32(data[-KEY_BYTES:].tobytes())
    rows = np.arange(int(wanted) + 1, dtype=np.uint64)
    hashes = document_hash.document_keys(start << 32 | end, np.zeros(1, np.uint32), rows)
    drawn = (hashes % np.uint64(cells)).astype(np.int64)
    _, indices = np.unique(drawn, return_index=True)
    return np.asarray(drawn[np.sort(indices)])


def _next_character(text: ByteArray, position: int) -> int:
    """The first position at or after the given one at which a character begins."""
    while position < len(text) and text[position] & 0xC0 == 0x80:
        position += 1
    return position
