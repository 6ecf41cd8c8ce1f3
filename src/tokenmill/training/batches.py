"""Fill the arrays of a batch from ranges of token streams."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from tokenmill.choices import Field
from tokenmill.errors import UsageError
from tokenmill.humanize import did_you_mean
from tokenmill.store.part import TokenArray
from tokenmill.training.index import Stream, join_documents
from tokenmill.training.order import Numbers

Batch = dict[str, npt.NDArray[Any]]

DEFAULT_FIELDS: tuple[Field, ...] = ("input_ids", "labels")

# The fields that have a 64-bit number for each token.
LONG_FIELDS = ("input_ids", "labels", "position_ids", "document_ids")

# The fields that follow from the labels.
MASK_FIELDS = ("loss_mask", "trained_tokens")

# The label of a token that is not to be learned, as in torch.nn.CrossEntropyLoss.
IGNORED = -100

# The number of the document of padding.
PADDING = -1

# The lengths of `cu_seqlens` are powers of two from this fraction of the tokens on, so that they rarely change.
MIN_DOCUMENT_TOKENS = 64


class DocumentPiece(NamedTuple):
    """A piece of a packed document: the document's number, whether it ends there, and the window it is from.

    The window is a range of the stream, from which many spans of a batch are. Padding has the number -1.
    """

    document: int
    is_end: bool
    window: tuple[int, int]


class Span(NamedTuple):
    """Tokens [start, stop) of a stream, which fill consecutive tokens of a batch.

    The label of the last token is the token after it, unless a document ends there that has been packed.
    """

    stream: Stream
    start: int
    stop: int
    piece: DocumentPiece | None = None

    @property
    def read_stop(self) -> int:
        """The end of the tokens that are read: the label of the last token is the token after it."""
        return self.stop if self.piece is not None and self.piece.is_end else self.stop + 1

    @property
    def is_padding(self) -> bool:
        """Whether the span fills the end of a row, and is no range of the stream."""
        return self.piece is not None and self.piece.document == PADDING

    @property
    def is_remote(self) -> bool:
        """Whether its tokens have to be fetched."""
        return self.stream.is_remote and not self.is_padding


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
    """The tokens of a span, with the one after it unless a document ends there.

    `masked` tells which of the tokens are not trained on; None if all are. Padding and erased documents are end tokens.
    """

    tokens: TokenArray
    masked: npt.NDArray[np.bool_] | None = None


def read_span(span: Span, tokens: TokenArray | None = None) -> SpanContent:
    """Read a span, or use its `tokens` if they were fetched. In an object store this may wait for requests."""
    if span.is_padding:
        size, store = span.stop - span.start, span.stream.store
        return SpanContent(np.full(size, store.run.erased_token, store.dtype), np.ones(size, np.bool_))
    return _read(span.stream, span.start, span.read_stop, tokens)


def _read(stream: Stream, start: int, stop: int, tokens: TokenArray | None = None) -> SpanContent:
    """Read tokens [start, stop) of a stream."""
    if tokens is None:
        tokens = stream.read(start, stop)
    erased = stream.erased(start, stop)
    if erased is not None:  # a document may be claimed, and its tokens still be there
        tokens = np.where(erased, tokens.dtype.type(stream.store.run.erased_token), tokens)
    trained = stream.trained(start, stop)
    if trained is None:
        return SpanContent(tokens, erased)
    return SpanContent(tokens, ~trained if erased is None else ~trained | erased)


def read_spans(spans: Sequence[Span]) -> Iterator[SpanContent]:
    """Read spans of local stores. If those that follow each other are most of a window, it is read at once."""
    for (_, window), group in itertools.groupby(
        spans, lambda span: (id(span.stream), span.piece and span.piece.window)
    ):
        members = list(group)
        if window is None or 2 * sum(span.stop - span.start for span in members) < window[1] - window[0]:
            yield from map(read_span, members)
            continue
        tokens, masked = _read(members[0].stream, *window)
        for span in members:
            if span.is_padding:
                yield read_span(span)
                continue
            own = slice(span.start - window[0], span.read_stop - window[0])
            yield SpanContent(tokens[own], None if masked is None else masked[own])


def needs_documents(fields: Sequence[Field]) -> bool:
    """Whether a field tells where documents begin."""
    return not {"input_ids", "labels", "tokens", "source_ids", *MASK_FIELDS}.issuperset(fields)


def fill(
    contents: Iterable[SpanContent], spans: Sequence[Span], shape: tuple[int, int], fields: Sequence[Field]
) -> Batch:
    """The arrays of a batch, rows by tokens, that spans fill one after the other."""
    needed = {*fields, *(["input_ids", "labels"] if "tokens" in fields else [])}
    needed |= set() if needed.isdisjoint(MASK_FIELDS) else {"labels"}
    names = [name for name in LONG_FIELDS if name in needed]
    # One allocation: the C library gives several back to the system, which then has to clear the pages of each batch.
    batch: Batch = dict(zip(names, np.empty((len(names), *shape), np.int64), strict=True))
    batch |= _source_fields(spans, shape, fields)
    ids, labels = (batch[name].reshape(-1) if name in batch else None for name in ("input_ids", "labels"))
    masked, position = list[Numbers](), 0
    for (_, start, stop, piece), (tokens, is_masked) in zip(spans, contents, strict=True):
        end = position + stop - start
        if ids is not None:
            ids[position:end] = tokens[: stop - start]
        if labels is not None and piece is not None and piece.is_end:
            labels[position : end - 1] = tokens[1:]
            labels[end - 1] = IGNORED
        elif labels is not None:
            labels[position:end] = tokens[1:]
        if is_masked is not None:
            masked.append(np.flatnonzero(is_masked[1:]) + position)
        position = end
    if "tokens" in fields:
        batch["tokens"] = np.concatenate([batch["input_ids"], batch["labels"][:, -1:]], axis=1)
    if labels is not None and masked:
        labels[np.concatenate(masked)] = IGNORED
    if labels is not None and not needed.isdisjoint(MASK_FIELDS):
        batch["loss_mask"] = batch["labels"] != IGNORED
        batch["trained_tokens"] = batch["loss_mask"].sum(axis=1)
    if needs_documents(fields):
        batch |= _document_fields(*_documents(spans), shape, batch)
    return {name: batch[name] for name in fields}


def _documents(spans: Sequence[Span]) -> tuple[Numbers, Numbers]:
    """Where documents begin in the tokens of all spans, and their numbers."""
    pieces = [span.piece for span in spans if span.piece is not None]
    if pieces:  # packed: each span is of one document
        ends = np.cumsum([span.stop - span.start for span in spans])
        return np.append(0, ends[:-1]), np.array([piece.document for piece in pieces])
    ranges = (span.stream.document_ranges(span.start, span.stop) for span in spans)
    return join_documents(itertools.chain.from_iterable(ranges))


@functools.lru_cache(maxsize=1)
def _counted(total: int) -> Numbers:
    return np.arange(total)


def _source_fields(spans: Sequence[Span], shape: tuple[int, int], fields: Sequence[Field]) -> Batch:
    """The number of the source of each token."""
    if "source_ids" not in fields:
        return {}
    sources = np.array([span.stream.source for span in spans], np.int32)
    return {"source_ids": np.repeat(sources, [span.stop - span.start for span in spans]).reshape(shape)}


def _document_fields(begins: Numbers, numbers: Numbers, shape: tuple[int, int], batch: Batch) -> Batch:
    """Fill the fields that tell where documents begin, from the positions and numbers of documents in the batch."""
    total = shape[0] * shape[1]
    edges = np.union1d(begins, np.arange(0, total, shape[1]))  # a document is cut at the start of a row
    if "position_ids" in batch:
        starts = np.repeat(edges, np.append(edges[1:], total) - edges)
        np.subtract(_counted(total), starts, out=batch["position_ids"].reshape(-1))
    if "document_ids" in batch:
        batch["document_ids"].reshape(-1)[:] = np.repeat(numbers, np.append(begins[1:], total) - begins)
    size = max(1 << len(edges).bit_length(), 1 << (total // MIN_DOCUMENT_TOKENS).bit_length())
    padded = np.full(size + 1, total, np.int32)
    padded[: len(edges)] = edges
    return {"cu_seqlens": padded}
