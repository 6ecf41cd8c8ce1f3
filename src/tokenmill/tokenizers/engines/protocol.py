"""The interface of an engine: Arrow strings in, flat tokens and offsets out."""

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
    """The concatenated tokens of several documents: document i is tokens[offsets[i]:offsets[i + 1]].

    Their type is that of the vocabulary, uint16 or uint32.
    """

    tokens: Tokens
    offsets: Offsets

    def document(self, position: int) -> Tokens:
        """The tokens of one document."""
        return self.tokens[self.offsets[position] : self.offsets[position + 1]]

    def filter(self, is_chosen: npt.NDArray[np.bool_]) -> Encoded:
        """The tokens of the chosen documents."""
        if is_chosen.all():
            return self
        lengths = np.diff(self.offsets)
        offsets = np.append(0, np.cumsum(lengths[is_chosen]))
        return Encoded(self.tokens[np.repeat(is_chosen, lengths)], offsets)

    @classmethod
    def join(cls, spec: TokenizerSpec, documents: list[Tokens]) -> Encoded:
        """Concatenate the tokens of single documents."""
        offsets = np.zeros(len(documents) + 1, np.int64)
        np.cumsum([len(tokens) for tokens in documents], out=offsets[1:])
        return cls(np.concatenate(documents) if documents else np.empty(0, spec.dtype), offsets)


def narrowed(spec: TokenizerSpec, tokens: Tokens) -> Tokens:
    """Convert tokens to the type of the vocabulary. Raises TokenizerError for an id outside of the vocabulary."""
    if len(tokens) and int(tokens.max()) >= spec.vocabulary_size:
        raise TokenizerError(f"the engine gave the id {tokens.max()}, which {spec.name} does not have")
    return tokens.astype(spec.dtype, copy=False)


class CannotEncode(TokenizerError):  # noqa: N818 - the name is written to logs and to the quarantine file
    """The reference fails on a document; `position` is the document's index in the batch.

    The reference defines the tokens, so such a document has no tokens with any engine.
    """

    position = 0

    @classmethod
    def at(cls, position: int, engine: str, error: BaseException) -> CannotEncode:
        """The error for an exception that a library raised on one document."""
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        failure = cls(f"{engine} cannot encode the document ({reason})")
        failure.position = position
        return failure


def is_refusal(error: BaseException) -> bool:
    """Whether a library failed on its input: any exception except MemoryError, or a panic of its Rust code.

    pyo3 raises a panic as `PanicException`, which is not an `Exception` and cannot be imported.
    """
    is_panic = type(error).__name__ == "PanicException"
    return is_panic or (isinstance(error, Exception) and not isinstance(error, MemoryError))


class Engine(Protocol):
    """Encodes documents as plain text: the spelling of a special token is not recognized."""

    name: str

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        """The tokens of each document; `text` has no nulls and is valid UTF-8. The reference raises CannotEncode."""
        ...


def text_buffers(text: pa.LargeStringArray) -> tuple[npt.NDArray[np.uint8], Offsets]:
    """The bytes of a string array, and the offsets of its documents, which start at 0."""
    _, offsets, data = text.buffers()
    if len(text) == 0 or data is None:
        return np.empty(0, np.uint8), np.zeros(len(text) + 1, np.int64)
    own = np.frombuffer(offsets, np.int64)[text.offset : text.offset + len(text) + 1]
    return np.frombuffer(data, np.uint8)[own[0] : own[-1]], own - own[0]
