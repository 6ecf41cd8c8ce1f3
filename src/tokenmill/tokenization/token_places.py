"""Where the tokens of documents are in their text, to find those that overlap ranges of it."""

from __future__ import annotations

from functools import cached_property

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import TokenizerError
from tokenmill.spans import Spans, covering
from tokenmill.storage.arrow_text import text_buffers
from tokenmill.tokenization.engines.huggingface import HuggingFaceEngine
from tokenmill.tokenization.engines.protocol import Encoded
from tokenmill.tokenization.spec import TokenizerSpec
from tokenmill.tokenization.token_bytes import token_bytes_lookup

IntArray = npt.NDArray[np.int64]


class TokenPlaces:
    """Finds the bytes of tokens. Those of most vocabularies are the text; of the others, the reference tells."""

    def __init__(self, spec: TokenizerSpec, content: bytes) -> None:
        self._spec = spec
        self._content = content

    @cached_property
    def _reference(self) -> HuggingFaceEngine:
        """The reference without the last step, which takes spaces from the places of tokens."""
        content = msgspec.json.encode({**msgspec.json.decode(self._content), "post_processor": None})
        return HuggingFaceEngine(self._spec, content)

    @cached_property
    def _bytes(self) -> pa.LargeBinaryArray:
        """The bytes of each token of the vocabulary."""
        lookup = token_bytes_lookup(self._spec, self._content)
        return pa.array(map(lookup, range(self._spec.vocabulary_size)), pa.large_binary())

    def covering(self, text: pa.LargeStringArray, encoded: Encoded, trained: Spans) -> Spans:
        """The tokens of each document that overlap these bytes of it."""
        data, offsets = text_buffers(self._without_marks(text) if self._spec.marks else text)
        spelled, edges = text_buffers(self._bytes.take(pa.array(encoded.tokens)))
        offsets, tokens = offsets - offsets[0], encoded.offsets
        if np.array_equal(edges[tokens], offsets) and np.array_equal(spelled, data):
            return covering(trained, offsets, edges[:-1], edges[1:], tokens)
        parts = []
        for number in range(len(text)):
            own, document = tokens[number : number + 2], data[offsets[number] : offsets[number + 1]]
            places, start = edges[own[0] : own[1] + 1], edges[own[0]]
            begins, ends = places[:-1] - start, places[1:] - start
            if not np.array_equal(spelled[start : places[-1]], document):
                begins, ends = self._by_reference(text[number].as_py(), encoded.document(number))
            edge = np.array([0, len(document)])
            parts.append(covering(trained.slice(number, number + 1), edge, begins, ends, own - own[0]))
        return Spans.join(parts)

    def _without_marks(self, text: pa.LargeStringArray) -> pa.LargeStringArray:
        """The text with the special tokens in place of their marks, which have the same sizes."""
        data, offsets = text_buffers(text)
        spellings, content = {token: text for text, token in self._spec.special_tokens.items()}, data.tobytes()
        for mark, token in self._spec.marks.items():
            content = content.replace(mark.encode(), spellings[token].encode())
        return pa.LargeStringArray.from_buffers(len(text), pa.py_buffer(offsets), pa.py_buffer(content))

    def _by_reference(self, text: str, tokens: npt.NDArray[np.unsignedinteger]) -> tuple[IntArray, IntArray]:
        """The bytes at which the tokens of a document begin and end."""
        if self._spec.kind == "tiktoken":
            raise TokenizerError("the bytes of a document's tokens are not its text", "This is a bug in tokenmill.")
        ids, ranges = self._reference.locate(text)
        if not np.array_equal(ids, tokens):
            raise TokenizerError("the reference gives other tokens than before", "This is a bug in tokenmill.")
        sizes = np.frombuffer(text.encode("utf-32-le"), np.uint32)
        widths = 1 + (sizes > 0x7F).astype(np.int64) + (sizes > 0x7FF) + (sizes > 0xFFFF)
        edges = np.append(0, np.cumsum(widths))[ranges]
        return edges[:, 0], edges[:, 1]
