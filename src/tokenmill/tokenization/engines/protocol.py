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


Frame = tuple[int | None, int | None]


def reframed(encoded: Encoded, before: Frame, after: Frame) -> Encoded:
    """Put another begin and end token around documents that have the frame `before`. Checks both on every document."""
    lengths, count = np.diff(encoded.offsets), len(encoded.offsets) - 1
    had, has = ([token is not None for token in frame] for frame in (before, after))
    if lengths.min(initial=2) < sum(had) or not _bounded_by(encoded.tokens, encoded.offsets, *before):
        raise TokenizerError("a document of a store lacks its bos or eot token", "`tokenmill verify` checks the store.")
    if before == after or not count:
        return encoded
    # The documents without their tokens of before are every second value, and what is between them is replaced.
    edges = np.repeat(encoded.offsets, 2)
    edges[1:-1:2] += had[0]
    edges[2::2] -= had[1]
    begin, end = (_bytes(encoded, token) for token in after)
    values = _binary(encoded.tokens, edges)
    is_document = np.arange(len(values)) % 2 == 1
    data = pc.if_else(pa.array(is_document), values, pa.scalar(end + begin, pa.large_binary())).buffers()[2]
    offsets = encoded.offsets + np.arange(count + 1) * (sum(has) - sum(had))
    tokens = np.frombuffer(data, encoded.tokens.dtype)[has[1] :][: offsets[-1]]
    if len(tokens) != offsets[-1] or not _bounded_by(tokens, offsets, *after):
        raise TokenizerError("the bos or eot token of a document is in the wrong place", "This is a bug in tokenmill.")
    train = encoded.train
    if train is not None:
        train = train.unframed(lengths, has_begin=had[0], has_end=had[1])
        train = train.framed(lengths - sum(had), has_begin=has[0], has_end=has[1])
    return Encoded(tokens, offsets, train)


def _bytes(encoded: Encoded, token: int | None) -> bytes:
    return b"" if token is None else encoded.tokens.dtype.type(token).tobytes()


def _binary(tokens: Tokens, edges: Offsets) -> pa.LargeBinaryArray:
    """Ranges of tokens as binary values."""
    tokens = np.ascontiguousarray(tokens)
    buffers = [None, pa.py_buffer(edges * tokens.itemsize), pa.py_buffer(tokens)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(edges) - 1, buffers)


def _surround(tokens: Tokens, offsets: npt.NDArray[np.int64], begin: int | None, end: int | None) -> Tokens:
    """Put a token before and after each document, copying whole documents at a time."""
    binary = pa.large_binary()
    documents = _binary(tokens, offsets)
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
