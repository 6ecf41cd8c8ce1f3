"""The interface of an engine: Arrow strings in, flat tokens and offsets out; begin and end tokens around documents."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import TokenizerError
from tokenmill.spans import Spans
from tokenmill.tokenization.spec import TokenizerSpec

Tokens = npt.NDArray[np.unsignedinteger[Any]]
Offsets = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Encoded:
    """The concatenated tokens of several documents: document i is tokens[offsets[i]:offsets[i + 1]].

    Their type is that of the vocabulary, uint16 or uint32. `train` are the tokens that are trained on; None if all are.
    """

    tokens: Tokens
    offsets: Offsets
    train: Spans | None = None

    def document(self, position: int) -> Tokens:
        """The tokens of one document."""
        return self.tokens[self.offsets[position] : self.offsets[position + 1]]

    def filter(self, is_chosen: npt.NDArray[np.bool_]) -> Encoded:
        """The tokens of the chosen documents."""
        if is_chosen.all():
            return self
        lengths = np.diff(self.offsets)
        offsets = np.append(0, np.cumsum(lengths[is_chosen]))
        train = None if self.train is None else self.train.select(is_chosen)
        return Encoded(self.tokens[np.repeat(is_chosen, lengths)], offsets, train)

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


@contextlib.contextmanager
def raising(refusal: Callable[[BaseException], TokenizerError]) -> Iterator[None]:
    """Raise the error that `refusal` makes if a library fails on its input, with any exception except MemoryError.

    pyo3 raises a panic of Rust code as `PanicException`, which is not an `Exception` and cannot be imported.
    """
    try:
        yield
    except (TokenizerError, MemoryError):
        raise
    except BaseException as error:
        if isinstance(error, Exception) or type(error).__name__ == "PanicException":
            raise refusal(error) from error
        raise


def encode_documents(
    spec: TokenizerSpec, engine: str, texts: list[str], encode: Callable[[list[str]], list[Tokens]]
) -> Encoded:
    """The tokens of documents by a reference. Raises CannotEncode for the first one on which `encode` fails."""

    def refusal(error: BaseException) -> CannotEncode:
        reason = str(error).partition("\n")[0][:200] or type(error).__name__
        return CannotEncode(f"{engine} cannot encode the document ({reason})")

    try:
        with raising(refusal):
            return Encoded.join(spec, [narrowed(spec, tokens) for tokens in encode(texts)])
    except CannotEncode as of_batch:
        for position, text in enumerate(texts):
            try:
                with raising(refusal):
                    encode([text])
            except CannotEncode as failure:
                failure.position = position
                raise
        raise of_batch.__cause__ or of_batch from None  # no document to blame


class Engine(Protocol):
    """Encodes documents as plain text: the spelling of a special token is not recognized."""

    name: str

    def encode(self, text: pa.LargeStringArray) -> Encoded:
        """The tokens of each document; `text` has no nulls and is valid UTF-8. The reference raises CannotEncode."""


def framed(encoded: Encoded, begin: int | None, end: int | None) -> Encoded:
    """Put begin and end tokens around each document. Checks the result on every document."""
    if begin is None and end is None:
        return encoded
    offsets = encoded.offsets + np.arange(len(encoded.offsets)) * ((begin is not None) + (end is not None))
    joined = _surround(np.ascontiguousarray(encoded.tokens), encoded.offsets, begin, end)
    if len(joined) != offsets[-1] or not _bounded_by(joined, offsets, begin, end):
        raise TokenizerError(
            "the bos or eot token of a document is missing or in the wrong place", "This is a bug in tokenmill."
        )
    train = encoded.train
    if train is not None:
        train = train.framed(np.diff(encoded.offsets), has_begin=begin is not None, has_end=end is not None)
    return Encoded(joined, offsets, train)


def _surround(tokens: Tokens, offsets: npt.NDArray[np.int64], begin: int | None, end: int | None) -> Tokens:
    """Put a token before and after each document, copying whole documents at a time."""
    size = tokens.dtype.itemsize
    binary = pa.large_binary()
    documents = pa.LargeBinaryArray.from_buffers(
        binary, len(offsets) - 1, [None, pa.py_buffer(offsets * size), pa.py_buffer(tokens)]
    )
    before = [pa.scalar(tokens.dtype.type(begin).tobytes(), binary)] if begin is not None else []
    after = [pa.scalar(tokens.dtype.type(end).tobytes(), binary)] if end is not None else []
    joined = pc.binary_join_element_wise(*before, documents, *after, pa.scalar(b"", binary))
    data = joined.buffers()[2]
    length = len(tokens) + (len(offsets) - 1) * (len(before) + len(after))
    return np.frombuffer(data, tokens.dtype)[:length] if length else tokens


def _bounded_by(tokens: Tokens, offsets: npt.NDArray[np.int64], begin: int | None, end: int | None) -> bool:
    first, last = offsets[:-1], offsets[1:] - 1
    return (begin is None or bool((tokens[first] == begin).all())) and (
        end is None or bool((tokens[last] == end).all())
    )
