"""Count what some parts hold: tokens, lengths, sources, bytes, reasons, hashes. Runs in a worker."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tokenmill.analysis import duplicates
from tokenmill.analysis.lengths import Counts, LengthCounts
from tokenmill.errors import CorruptStore
from tokenmill.pipeline.position import Position
from tokenmill.storage import folder_at, prefetch_map
from tokenmill.store import layout
from tokenmill.store.job import Job
from tokenmill.store.listed_parts import ListedParts
from tokenmill.store.part import PartContent, PartSummary
from tokenmill.tokenizers.token_bytes import token_bytes_lookup

TOKENS_PER_BATCH = 1 << 18
"""Few enough to stay in the processor's cache while they are counted."""

DOCUMENTS_PER_BATCH = 1 << 18
"""A part of documents of a few tokens each has millions of them."""

PREFETCH_PARTS = 2
RATIO_STEPS = 10
RATIO_BINS = 101
"""Bytes per token of a document, in tenths; the last bin has those with ten and more."""


MAX_REASONS = 100
OTHER_REASONS = "other reasons"


@dataclass(frozen=True, slots=True)
class TokenRange:
    """Parts that follow each other, which are counted together: [start, stop), and the number of their scratch file."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TokenTexts:
    """How many bytes each id stands for, and how many of a document's are not text: its begin and its end token."""

    sizes: Counts
    frame_bytes: int


@dataclass
class PartCounts:
    """What some parts hold.

    `by_source` has a row each for documents, tokens and bytes; its columns begin with the source `first`. Bytes are
    those that the tokens stand for: they are the text's own where `faithful` says so, as nearly all vocabularies have
    it.
    """

    tokens: Counts
    lengths: LengthCounts = field(default_factory=LengthCounts)
    ratios: Counts = field(default_factory=lambda: np.zeros(RATIO_BINS, np.int64))
    first: int = 0
    by_source: Counts = field(default_factory=lambda: np.zeros((3, 0), np.int64))
    text_bytes: int = 0
    faithful: bool = True
    skipped: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class CountParts:
    """The function that counts some parts of the store in `directory`.

    If there is a `scratch` directory, what tells equal documents goes there, in as many `ranges`.
    """

    directory: str
    job: Job
    parts: ListedParts
    scratch: str | None = None
    ranges: int = 1

    def __call__(self, stretch: TokenRange) -> PartCounts:
        """Count them one after the other; those to come are fetched meanwhile, where that takes a network."""
        folder = folder_at(self.directory)
        pieces = pieces_of(self.directory, self.job)
        total = PartCounts(np.zeros(len(pieces.sizes), np.int64))
        found: list[duplicates.Records] = []
        opened = prefetch_map(
            folder,
            functools.partial(self.parts.open, content_too=False),
            range(stretch.start, stretch.stop),
            PREFETCH_PARTS,
        )
        for summary, content in opened:
            Position("read").mark()
            self._count(total, summary, content, pieces)
            if self.scratch is not None:
                found.append(duplicates.records(content))
        if self.scratch is not None:
            duplicates.spill(duplicates.scratch_path(self.scratch, stretch.number), found, self.ranges)
        return total

    def _count(self, total: PartCounts, summary: PartSummary, content: PartContent, pieces: TokenTexts) -> None:
        lengths = np.diff(content.offsets)
        written = count_tokens(self.directory, summary.unit, content, total.tokens, pieces)
        for start in range(0, len(lengths), DOCUMENTS_PER_BATCH):
            some = slice(start, start + DOCUMENTS_PER_BATCH)
            _add_documents(total, content.source[some], lengths[some], written[some])
        total.text_bytes += summary.text_bytes
        total.faithful &= int(written.sum()) == summary.text_bytes
        for skipped in summary.skipped:
            known = skipped.reason in total.skipped or len(total.skipped) < MAX_REASONS
            total.skipped[skipped.reason if known else OTHER_REASONS] += skipped.rows


def count_tokens(directory: str, unit: int, content: PartContent, counts: Counts, pieces: TokenTexts) -> Counts:
    """Add to the counts of ids; the bytes that the tokens of each document stand for."""
    written = np.full(len(content.row), -pieces.frame_bytes, np.int64)
    for start in range(0, len(content.tokens), TOKENS_PER_BATCH):
        ids = content.tokens[start : start + TOKENS_PER_BATCH].astype(np.intp)
        found = np.bincount(ids, minlength=len(counts))
        if len(found) > len(counts):
            raise CorruptStore(f"part {unit} of {directory} holds token {len(found) - 1}, of {len(counts)}")
        counts += found
        _spread(written, content.offsets, start, pieces.sizes[ids])
    return written


def _spread(written: Counts, offsets: Counts, start: int, values: Counts) -> None:
    """Add values of tokens, the first of which is token `start`, to the documents that they are in."""
    stop = start + len(values)
    first = int(np.searchsorted(offsets, start, side="right")) - 1
    last = int(np.searchsorted(offsets, stop, side="left"))
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    edges = np.clip(offsets[first : last + 1], start, stop) - start
    written[first:last] += np.diff(before[edges])


def _add_documents(total: PartCounts, source: npt.NDArray[np.uint32], lengths: Counts, written: Counts) -> None:
    total.lengths.add(lengths)
    total.ratios += _ratios(written, lengths)
    _add_sources(total, source, np.stack([np.ones_like(lengths), lengths, written]))


def _ratios(written: Counts, lengths: Counts) -> Counts:
    bins = written[lengths > 0] * RATIO_STEPS // lengths[lengths > 0]
    return np.bincount(np.clip(bins, 0, RATIO_BINS - 1), minlength=RATIO_BINS)


def _add_sources(total: PartCounts, source: npt.NDArray[np.uint32], values: Counts) -> None:
    if not len(source):
        return
    first, last = int(source.min()), int(source.max())
    if not total.by_source.shape[1]:
        total.first = first
    low, high = min(first, total.first), max(last + 1, total.first + total.by_source.shape[1])
    if high - low > total.by_source.shape[1]:
        wider = np.zeros((len(values), high - low), np.int64)
        wider[:, total.first - low : total.first - low + total.by_source.shape[1]] = total.by_source
        total.first, total.by_source = low, wider
    places = source.astype(np.int64) - total.first
    for row, value in enumerate(values):
        found = np.bincount(places, weights=value, minlength=total.by_source.shape[1])
        total.by_source[row] += found.astype(np.int64)  # exact: no part has 2**53 bytes


_pieces: dict[tuple[str, str], TokenTexts] = {}


def pieces_of(directory: str, job: Job) -> TokenTexts:
    """The pieces of a store's vocabulary. Kept by the worker."""
    key = (directory, job.digest())
    if key not in _pieces:
        _pieces.clear()
        lookup = token_bytes_lookup(job.tokenizer, layout.read_vocabulary(folder_at(directory), job.tokenizer))
        sizes = np.array([len(lookup(token)) for token in range(job.tokenizer.vocabulary_size)], np.int64)
        _pieces[key] = TokenTexts(sizes, sum(int(sizes[token]) for token in (job.begin, job.end) if token is not None))
    return _pieces[key]
