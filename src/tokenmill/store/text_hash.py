"""The hash of the text that a part was made from."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import xxhash


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
