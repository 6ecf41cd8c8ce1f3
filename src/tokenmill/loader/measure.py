"""Measure a loader: its speed in this process, and how its rows cut documents."""

from __future__ import annotations

import time

import msgspec

from tokenmill.humanize import Readable
from tokenmill.loader.loader import Loader

# Rows whose documents are counted.
SAMPLE_ROWS = 256


class RowStatistics(Readable, msgspec.Struct, frozen=True):
    """Documents of a sample of rows: pieces of documents in a row, and the fraction of pieces that are whole."""

    rows: int
    pieces_per_row: float
    whole: float


def count_pieces(loader: Loader, rows: int = SAMPLE_ROWS) -> RowStatistics:
    """Count the pieces of documents in the first rows of a loader. No row is padded."""
    rows = min(rows, loader.sequences)
    pieces = whole = 0
    for row in range(rows):
        for stream, start, stop, _ in loader.reader.spans(row, row + 1):
            begins, numbers = stream.documents(start, stop)
            lengths = [*(begins[1:] - begins[:-1]).tolist(), stop - start - int(begins[-1])]
            pieces += len(lengths)
            documents = (stream.store[number] for number in numbers.tolist())
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
