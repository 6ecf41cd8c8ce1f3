"""Fill the arrays of a batch from ranges of token streams."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from tokenmill.errors import UsageError
from tokenmill.humanize import did_you_mean
from tokenmill.options import Field
from tokenmill.store.part import TokenArray
from tokenmill.training.index import Stream
from tokenmill.training.order import Numbers

Batch = dict[str, npt.NDArray[Any]]

DEFAULT_FIELDS: tuple[Field, ...] = ("input_ids", "labels")

# The label of a token that is not to be learned, as in torch.nn.CrossEntropyLoss.
IGNORED = -100

# The lengths of `cu_seqlens` are powers of two from this fraction of the tokens on, so that they rarely change.
MIN_DOCUMENT_TOKENS = 64


class Span(NamedTuple):
    """Tokens [start, stop) of a stream, which fill consecutive tokens of a batch.

    The label of the last token is the token after it, unless a document ends there that has been packed.
    """

    stream: Stream
    start: int
    stop: int
    is_end: bool = False

    @property
    def read_stop(self) -> int:
        """The end of the tokens that are read: the label of the last token is the token after it."""
        return self.stop if self.is_end else self.stop + 1


def check_fields(fields: Sequence[str]) -> tuple[Field, ...]:
    """The fields of a batch; commas separate them in a text. Raises UsageError for an unknown one."""
    names = [name.strip() for name in fields.split(",")] if isinstance(fields, str) else list(fields)
    unknown = [name for name in names if name not in get_args(Field)]
    if unknown or not names:
        message = f"a batch has no field {unknown[0]!r}" if unknown else "a batch needs a field"
        meant = did_you_mean(unknown[0], get_args(Field)) if unknown else []
        raise UsageError(message, *meant, f"Choose from: {', '.join(get_args(Field))}.")
    return tuple(names)  # type: ignore[arg-type]


class SpanContent(NamedTuple):
    """The tokens of a span, with the one after it unless a document ends there; and where its documents begin.

    `erased` tells which of the tokens belong to erased documents; None if none does. They are end tokens.
    """

    tokens: TokenArray
    documents: tuple[Numbers, Numbers] | None
    erased: npt.NDArray[np.bool_] | None = None


def read_span(span: Span, with_documents: bool, tokens: TokenArray | None = None) -> SpanContent:
    """Read a span, or use its `tokens` if they were fetched. In an object store this may wait for requests."""
    if tokens is None:
        tokens = span.stream.read(span.start, span.read_stop)
    documents = None
    if with_documents:
        begins, numbers = span.stream.documents(span.start, span.stop)
        documents = begins, numbers + span.stream.first_document
    erased = span.stream.erased(span.start, span.read_stop)
    if erased is not None:  # a document may be claimed, and its tokens still be there
        tokens = np.where(erased, tokens.dtype.type(span.stream.store.run.erased_token), tokens)
    return SpanContent(tokens, documents, erased)


def needs_documents(fields: Sequence[Field]) -> bool:
    """Whether a field tells where documents begin."""
    return not {"input_ids", "labels", "tokens", "source_ids"}.issuperset(fields)


def fill(
    contents: Iterable[SpanContent], spans: Sequence[Span], shape: tuple[int, int], fields: Sequence[Field]
) -> Batch:
    """The arrays of a batch, rows by tokens, that spans fill one after the other."""
    needed = {"input_ids", "labels"} if "tokens" in fields else {"input_ids", "labels"}.intersection(fields)
    batch: Batch = {name: np.empty(shape, np.int64) for name in needed}
    batch |= _source_fields(spans, shape, fields)
    ids, labels = (batch[name].reshape(-1) if name in batch else None for name in ("input_ids", "labels"))
    begins, numbers, masked, position = [], [], list[Numbers](), 0
    for (_, start, stop, is_end), (tokens, documents, erased) in zip(spans, contents, strict=True):
        end = position + stop - start
        if ids is not None:
            ids[position:end] = tokens[: stop - start]
        if labels is not None and is_end:
            labels[position : end - 1] = tokens[1:]
            labels[end - 1] = IGNORED
        elif labels is not None:
            labels[position:end] = tokens[1:]
        if erased is not None:
            masked.append(np.flatnonzero(erased[1:]) + position)
        if documents is not None:
            begins.append(documents[0] + position)
            numbers.append(documents[1])
        position = end
    if "tokens" in fields:
        batch["tokens"] = np.concatenate([batch["input_ids"], batch["labels"][:, -1:]], axis=1)
    if labels is not None and masked:
        labels[np.concatenate(masked)] = IGNORED
    if begins:
        batch |= _document_fields(np.concatenate(begins), np.concatenate(numbers), shape, fields)
    return {name: batch[name] for name in fields}


def _source_fields(spans: Sequence[Span], shape: tuple[int, int], fields: Sequence[Field]) -> Batch:
    """The number of the source of each token."""
    if "source_ids" not in fields:
        return {}
    sources = np.array([span.stream.source for span in spans], np.int32)
    return {"source_ids": np.repeat(sources, [span.stop - span.start for span in spans]).reshape(shape)}


def _document_fields(begins: Numbers, numbers: Numbers, shape: tuple[int, int], fields: Sequence[Field]) -> Batch:
    """The fields that tell where documents begin, from the positions and numbers of documents in the batch."""
    total = shape[0] * shape[1]
    edges = np.union1d(begins, np.arange(0, total, shape[1]))  # a document is cut at the start of a row
    lengths = np.diff(edges, append=total)
    batch: Batch = {}
    if "position_ids" in fields:
        batch["position_ids"] = (np.arange(total) - np.repeat(edges, lengths)).reshape(shape)
    if "document_ids" in fields:
        batch["document_ids"] = np.repeat(numbers, np.diff(begins, append=total)).reshape(shape)
    if "cu_seqlens" in fields:
        size = max(1 << len(edges).bit_length(), 1 << (total // MIN_DOCUMENT_TOKENS).bit_length())
        padded = np.full(size + 1, total, np.int32)
        padded[: len(edges)] = edges
        batch["cu_seqlens"] = padded
    return batch
