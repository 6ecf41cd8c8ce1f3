"""What `tokenmill loader` shows: an epoch in numbers, one batch as text, and the speed of this process."""

from __future__ import annotations

import itertools
import time

import msgspec
import numpy as np

from tokenmill.api.open import Store
from tokenmill.humanize import Readable
from tokenmill.training.batches import IGNORED, Batch
from tokenmill.training.loader import Loader

# Rows whose documents are counted.
SAMPLE_ROWS = 256


class RowStatistics(Readable, msgspec.Struct, frozen=True):
    """Documents of a sample of rows: pieces of documents in a row, and the fraction of pieces that are whole."""

    rows: int
    pieces_per_row: float
    whole: float


def count_pieces(loader: Loader, rows: int = SAMPLE_ROWS) -> RowStatistics:
    """Count the pieces of documents in the first rows of a loader."""
    rows = min(rows, loader.sequences)
    pieces = whole = 0
    for row in range(rows):
        for span in loader.reader.spans(row, row + 1):
            if span.is_padding:
                continue
            stream, start, stop, _ = span
            begins, numbers = stream.documents(start, stop)
            lengths = [*(begins[1:] - begins[:-1]).tolist(), stop - start - int(begins[-1])]
            pieces += len(lengths)
            documents = (stream.store[number - stream.first_document] for number in numbers.tolist())
            whole += sum(len(document) == length for document, length in zip(documents, lengths, strict=True))
    return RowStatistics(rows, pieces / rows, whole / pieces)


def tokens_per_second(loader: Loader, seconds: float) -> float:
    """Read batches for some seconds and return the tokens per second. Parts may have to be read from the disk first."""
    begun, elapsed, steps = time.perf_counter(), 0.0, 0
    last = loader.options.batch_sequences << 60  # passes without end
    for steps, _ in enumerate(loader.batches(0, last), 1):  # noqa: B007 - counts the batches
        elapsed = time.perf_counter() - begun
        if elapsed >= seconds:
            break
    rows = loader.options.batch_sequences // loader.rank.world_size
    return steps * rows * loader.options.sequence_tokens / elapsed


class RowPiece(Readable, msgspec.Struct, frozen=True):
    """The text of tokens of a row that follow each other, of which all are trained on, or none."""

    text: str
    is_trained: bool


class LoaderPreview(Readable, msgspec.Struct, frozen=True):
    """A loader in numbers. `fields` has the type and shape of each array of the batch of `step`.

    `rows` is the text of each of its rows, if `input_ids` or `tokens` are among the fields. `pieces` divides this text
    by what is trained on, if `labels` are among them, too, and some are -100. The first token of a row is not trained
    on in this row, because no token is before it. Of the `epoch_tokens` in an
    epoch of all sources, `padding_tokens` are padding; `long_documents` with `long_tokens` are left out of it because
    they are longer than a sequence, with the packing `whole`.
    """

    stores: list[str]
    sequences: int
    tokens: int
    tail_tokens: int
    epoch_tokens: int
    padding_tokens: int
    long_documents: int
    long_tokens: int
    steps: int
    digest: str
    documents: RowStatistics
    tokens_per_second: float | None
    rank: int
    world_size: int
    step: int
    fields: dict[str, str]
    rows: list[str]
    pieces: list[list[RowPiece]] | None = None


def preview(loader: Loader, step: int, seconds: float) -> LoaderPreview:
    """Read the batch of a step, and measure for some seconds; 0 seconds measure nothing."""
    batch = loader[step]
    return LoaderPreview(
        stores=list(loader.options.stores),
        sequences=loader.sequences,
        tokens=loader.tokens,
        tail_tokens=loader.tail_tokens,
        epoch_tokens=sum(source.tokens for source in loader.reader.sources),
        padding_tokens=loader.waste.padding_tokens,
        long_documents=loader.waste.long_documents,
        long_tokens=loader.waste.long_tokens,
        steps=len(loader),
        digest=loader.state_dict()["digest"],
        documents=count_pieces(loader),
        tokens_per_second=tokens_per_second(loader, seconds) if seconds else None,
        rank=loader.rank.rank,
        world_size=loader.rank.world_size,
        step=step,
        fields={name: f"{array.dtype} {list(array.shape)}" for name, array in batch.items()},
        rows=_texts(loader, batch),
        pieces=_pieces(loader, batch),
    )


def _texts(loader: Loader, batch: Batch) -> list[str]:
    """The text of each row of a batch."""
    store = Store(loader.options.stores[:1])
    rows: list[list[int]] = next((batch[name].tolist() for name in ("input_ids", "tokens") if name in batch), [])
    return [b"".join(map(store.token_bytes, tokens)).decode(errors="replace") for tokens in rows]


def _pieces(loader: Loader, batch: Batch) -> list[list[RowPiece]] | None:
    """The text of each row, divided by what is trained on."""
    if not {"input_ids", "labels"} <= batch.keys() or not (batch["labels"] == IGNORED).any():
        return None
    store = Store(loader.options.stores[:1])
    rows = []
    for tokens, labels in zip(batch["input_ids"], batch["labels"], strict=True):
        is_trained = np.append(False, labels[:-1] != IGNORED)
        edges = [0, *(np.flatnonzero(np.diff(is_trained)) + 1).tolist(), len(tokens)]
        rows.append(
            [
                RowPiece(
                    b"".join(map(store.token_bytes, tokens[low:high].tolist())).decode(errors="replace"),
                    bool(is_trained[low]),
                )
                for low, high in itertools.pairwise(edges)
            ]
        )
    return rows
