"""Documents that are token ids already: nothing is encoded."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from tokenmill.errors import TokenizerError
from tokenmill.storage.arrow_text import text_buffers
from tokenmill.tokenization.engines.protocol import Encoded
from tokenmill.tokenization.spec import TokenizerSpec

# The kinds of a tokenizer whose documents are ids: of four bytes, or of the type of the vocabulary.
IDS, STORED = "ids", "stored"


class OutsideVocabulary(TokenizerError):  # noqa: N818 - the name is written to logs
    """A document has an id that the vocabulary does not have; `position` is the document's index in the batch."""

    position = 0


class IdsEngine:
    """Takes the ids of documents as they are, in the type of the vocabulary."""

    name = "none"

    def __init__(self, spec: TokenizerSpec, content: bytes) -> None:
        del content
        self._spec = spec

    def encode(self, text: pa.LargeBinaryArray) -> Encoded:
        """The ids of each document. Raises OutsideVocabulary for an id that does not exist, unless a store had it."""
        data, offsets = text_buffers(text)
        kind = np.dtype("<u4" if self._spec.kind == IDS else self._spec.dtype)
        ids, offsets = data.view(kind), offsets // kind.itemsize
        if self._spec.kind == IDS and len(ids) and int(ids.max()) >= self._spec.vocabulary_size:
            first = int(np.argmax(ids >= self._spec.vocabulary_size))
            failure = OutsideVocabulary(
                f"the id {ids[first]} is not a token of {self._spec.name}, whose ids go from 0 to "
                f"{self._spec.vocabulary_size - 1}"
            )
            failure.position = int(np.searchsorted(offsets, first, side="right")) - 1
            raise failure
        return Encoded(ids.astype(self._spec.dtype, copy=False), offsets)
