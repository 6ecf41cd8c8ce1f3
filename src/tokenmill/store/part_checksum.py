"""The two checksums of a part, and the hash of the text that it was made from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash

from tokenmill.storage.digest import Hasher

if TYPE_CHECKING:
    from tokenmill.store.part import PartContent, PartSummary


def _columns(content: PartContent) -> list[memoryview]:
    columns = [content.tokens, content.offsets, content.source, content.row]
    if content.train is not None:
        columns += [content.train.values, content.train.offsets]
    return [np.ascontiguousarray(column).data.cast("B") for column in columns]


def checksum(content: PartContent, summary: PartSummary) -> str:
    """BLAKE3 of the values of the columns, in order, and the summary in JSON with an empty `blake3`."""
    digest = Hasher()
    for column in _columns(content):
        digest.update(column)
    digest.update(msgspec.json.encode(msgspec.structs.replace(summary, blake3="")))
    return digest.hexdigest()


def fast_checksum(content: PartContent) -> str:
    """XXH3 of the values of the columns, in order."""
    digest = xxhash.xxh3_128()
    for column in _columns(content):
        digest.update(column)
    return digest.hexdigest()


def with_checksum(summary: PartSummary, content: PartContent) -> PartSummary:
    """The summary with both checksums filled in."""
    summary = msgspec.structs.replace(summary, xxh3=fast_checksum(content))
    return msgspec.structs.replace(summary, blake3=checksum(content, summary))


class TextHash:
    """The hash of the text and the boundaries of documents. It does not depend on how they are batched.

    `text_bytes` is the size of the text. A part that leaves out documents subtracts theirs.
    """

    def __init__(self) -> None:
        self.text_bytes = 0
        self._text, self._lengths = xxhash.xxh3_128(), xxhash.xxh3_128()

    def update(self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> None:
        """Add documents: document i is data[offsets[i]:offsets[i + 1]]."""
        self.text_bytes += len(data)
        self._text.update(data.data)
        self._lengths.update(np.diff(offsets).data)

    def hexdigest(self) -> str:
        """The hash of all documents so far."""
        return xxhash.xxh3_128_hexdigest(self._text.digest() + self._lengths.digest())
