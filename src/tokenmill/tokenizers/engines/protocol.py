"""What an engine is: Arrow strings in, flat tokens and offsets out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import TokenizerError
from tokenmill.tokenizers.spec import TokenizerSpec

Tokens = npt.NDArray[np.unsignedinteger[Any]]
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Encoded:
    """The tokens of several documents, one after the other: document i is tokens[offsets[i]:offsets[i + 1]].

    They are of the vocabulary's type, uint16 or uint32.
    """

    tokens: Tokens
    offsets: Offsets

    def document(self, position: int) -> Tokens:
        """The tokens of one document."""
        return self.tokens[self.offsets[position] : self.offsets[position + 1]]

    @classmethod
    def join(cls, spec: TokenizerSpec, documents: list[Tokens]) -> Encoded:
        """Put the tokens of single documents together."""
        offsets = np.zeros(len(documents) + 1, np.int64)
        np.cumsum([len(tokens) for tokens in documents], out=offsets[1:])
        return cls(np.concatenate(documents) if documents else np.empty(0, spec.dtype), offsets)


def narrowed(spec: TokenizerSpec, tokens: Tokens) -> Tokens:
    """Tokens in the type that holds every id of the vocabulary; an id that is not in it is an error."""
    if len(tokens) and int(tokens.max()) >= spec.vocabulary_size:
        raise TokenizerError(f"the engine gave the id {tokens.max()}, which {spec.name} does not have")
    return tokens.astype(spec.dtype, copy=False)


class CannotEncode(TokenizerError):
    """The reference has no tokens for a document; `position` is the document's place in the batch.

    The reference decides what the tokens are, so such a document has none with any engine.
    """

    position = 0

    @classmethod
    def at(cls, position: int, engine: str, error: BaseException) -> CannotEncode:
        """The error for what a library raised on one document."""
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        failure = cls(f"{engine} cannot encode the document ({reason})")
        failure.position = position
        return failure


def is_refusal(error: BaseException) -> bool:
    """Whether a library failed on what it was given: an exception, but for memory, or a panic of its Rust code.

    pyo3 raises a panic as `PanicException`, which is not an `Exception` and cannot be imported.
    """
    is_panic = type(error).__name__ == "PanicException"
    return is_panic or (isinstance(error, Exception) and not isinstance(error, MemoryError))


class Engine(Protocol):
    """Encodes documents as text, whatever special tokens they spell."""

    name: str

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        """The tokens of each document; `text` has no nulls and is valid UTF-8. The reference raises CannotEncode."""
        ...


def text_buffers(text: pa.LargeStringArray) -> tuple[npt.NDArray[np.uint8], Offsets]:
    """The bytes of a string array and the offsets of its documents in them, which begin at 0."""
    _, offsets, data = text.buffers()
    if len(text) == 0 or data is None:
        return np.empty(0, np.uint8), np.zeros(len(text) + 1, np.int64)
    own = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
    return np.frombuffer(data, np.uint8)[own[0] : own[-1]], own - own[0]
