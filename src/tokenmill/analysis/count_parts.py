"""Counts what a group of parts holds: tokens, lengths, sources, bytes, skip reasons, hashes. Runs in a worker."""

from __future__ import annotations

import functools
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from tokenmill.analysis import duplicates
from tokenmill.analysis.lengths import Counts, LengthCounts
from tokenmill.errors import CorruptStore
from tokenmill.pipeline.unit.plan import Position
from tokenmill.storage import folder_at, prefetch_map
from tokenmill.store.job import Job, read_vocabulary
from tokenmill.store.listed_parts import ListedParts
from tokenmill.store.part import PartContent, PartSummary
from tokenmill.tokenization.token_bytes import token_bytes_lookup

# Few enough tokens to stay in the processor's cache while they are counted.
TOKENS_PER_BATCH = 1 << 18
# Bounds memory: a part of very short documents has millions of them.
DOCUMENTS_PER_BATCH = 1 << 18
PREFETCH_PARTS = 2
# Bins per byte of a document's bytes-per-token ratio.
RATIO_STEPS = 10
# The last bin holds the documents with ten or more bytes per token.
RATIO_BINS = 101
MAX_REASONS = 100
OTHER_REASONS = "other reasons"


@dataclass(frozen=True, slots=True)
class PartGroup:
    """Consecutive parts [start, stop) that are counted together. `number` names their scratch file."""

    number: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class TokenSizes:
    """The bytes that each token id stands for, and those of a document's begin and end token together."""

    sizes: Counts
    frame_bytes: int


@dataclass
class PartCounts:
    """What a group of parts holds, or all groups together.

    `by_source` has the rows documents, tokens and bytes. Its first column is the source `first_source`. Bytes are those
    that the tokens stand for. They equal the bytes of the text if `byte_exact`, as with nearly all vocabularies.
    """

    tokens: Counts
    lengths: LengthCounts = field(default_factory=LengthCounts)
    ratios: Counts = field(default_factory=lambda: np.zeros(RATIO_BINS, np.int64))
    first_source: int = 0
    by_source: Counts = field(default_factory=lambda: np.zeros((3, 0), np.int64))
    text_bytes: int = 0
    byte_exact: bool = True
    skipped: Counter[str] = field(default_factory=Counter)

    def merge(self, other: PartCounts) -> None:
        """Add the counts of another group, whose sources are among those of this one."""
        self.tokens += other.tokens
        self.lengths.merge(other.lengths)
        self.ratios += other.ratios
        first = other.first_source - self.first_source
        self.by_source[:, first : first + other.by_source.shape[1]] += other.by_source
        self.text_bytes += other.text_bytes
        self.byte_exact &= other.byte_exact
        self.skipped.update(other.skipped)

    @property
    def token_count(self) -> int:
        """The number of tokens."""
        return int(self.tokens.sum())

    @property
    def document_count(self) -> int:
        """The number of documents."""
        return int(self.lengths.documents.sum())


@dataclass(frozen=True, slots=True)
class CountParts:
    """Counts a group of parts.

    If `scratch` is a directory, the document hashes are written there, divided into `ranges`.
    """

    job: Job
    parts: ListedParts
    scratch: str | None = None
    ranges: int = 1

    def __call__(self, group: PartGroup) -> PartCounts:
        """Count the parts in order. From a remote store, the next parts are fetched meanwhile."""
        token_sizes = load_token_sizes(self.parts.stores[0].directory, self.job)
        total = PartCounts(np.zeros(len(token_sizes.sizes), np.int64))
        records: list[duplicates.Records] = []
        opened = prefetch_map(
            self.parts.folder,
            functools.partial(self.parts.open, content_too=False),
            range(group.start, group.stop),
            PREFETCH_PARTS,
        )
        for summary, content in opened:
            Position("read").mark()
            self._count(total, summary, content, token_sizes)
            if self.scratch is not None:
                records.append(duplicates.records(content))
        if self.scratch is not None:
            duplicates.spill(duplicates.scratch_path(self.scratch, group.number), records, self.ranges)
        return total

    def _count(self, total: PartCounts, summary: PartSummary, content: PartContent, token_sizes: TokenSizes) -> None:
        lengths = np.diff(content.offsets)
        document_bytes = count_tokens(self.parts.name, summary.unit, content, total.tokens, token_sizes)
        for start in range(0, len(lengths), DOCUMENTS_PER_BATCH):
            batch = slice(start, start + DOCUMENTS_PER_BATCH)
            _add_documents(total, content.source[batch], lengths[batch], document_bytes[batch])
        if content.erased is None and (summary.text_bytes or not summary.tokens):
            total.text_bytes += summary.text_bytes
            total.byte_exact &= int(document_bytes.sum()) == summary.text_bytes
        else:  # the part does not record how much text was erased, or that its documents were ids already
            total.text_bytes += int(document_bytes.sum())
        for skipped in summary.skipped:
            has_entry = skipped.reason in total.skipped or len(total.skipped) < MAX_REASONS
            total.skipped[skipped.reason if has_entry else OTHER_REASONS] += skipped.rows


def count_tokens(directory: str, unit: int, content: PartContent, counts: Counts, token_sizes: TokenSizes) -> Counts:
    """Add the tokens of a part to `counts`, and return the bytes that the tokens of each document stand for."""
    document_bytes = np.full(len(content.row), -token_sizes.frame_bytes, np.int64)
    for start in range(0, len(content.tokens), TOKENS_PER_BATCH):
        ids = content.tokens[start : start + TOKENS_PER_BATCH].astype(np.intp)
        batch_counts = np.bincount(ids, minlength=len(counts))
        if len(batch_counts) > len(counts):
            raise CorruptStore(f"part {unit} of {directory} holds token {len(batch_counts) - 1}, of {len(counts)}")
        counts += batch_counts
        _add_by_document(document_bytes, content.offsets, start, token_sizes.sizes[ids])
    return document_bytes


def _add_by_document(totals: Counts, offsets: Counts, start: int, values: Counts) -> None:
    """Add one value per token to the totals of the documents. The first value is that of token `start`."""
    stop = start + len(values)
    first = int(np.searchsorted(offsets, start, side="right")) - 1
    last = int(np.searchsorted(offsets, stop, side="left"))
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(values)])
    edges = np.clip(offsets[first : last + 1], start, stop) - start
    totals[first:last] += np.diff(before[edges])


def _add_documents(total: PartCounts, source: npt.NDArray[np.uint32], lengths: Counts, document_bytes: Counts) -> None:
    total.lengths.add(lengths)
    ratio_bins = document_bytes[lengths > 0] * RATIO_STEPS // lengths[lengths > 0]
    total.ratios += np.bincount(np.clip(ratio_bins, 0, RATIO_BINS - 1), minlength=RATIO_BINS)
    _add_sources(total, source, np.stack([np.ones_like(lengths), lengths, document_bytes]))


def _add_sources(total: PartCounts, source: npt.NDArray[np.uint32], values: Counts) -> None:
    if not len(source):
        return
    first, last = int(source.min()), int(source.max())
    width = total.by_source.shape[1]
    if not width:
        total.first_source = first
    low, high = min(first, total.first_source), max(last + 1, total.first_source + width)
    if high - low > width:
        wider = np.zeros((len(values), high - low), np.int64)
        wider[:, total.first_source - low : total.first_source - low + width] = total.by_source
        total.first_source, total.by_source = low, wider
    columns = source.astype(np.int64) - total.first_source
    for row, value in enumerate(values):
        sums = np.bincount(columns, weights=value, minlength=total.by_source.shape[1])
        total.by_source[row] += sums.astype(np.int64)  # exact: no part has 2**53 bytes


_token_sizes: dict[tuple[str, str], TokenSizes] = {}


def load_token_sizes(directory: str, job: Job) -> TokenSizes:
    """The token sizes of a store's vocabulary. A worker caches those of one store."""
    key = (directory, job.digest())
    if key not in _token_sizes:
        _token_sizes.clear()
        lookup = token_bytes_lookup(job.tokenizer, read_vocabulary(folder_at(directory), job.tokenizer))
        sizes = np.array([len(lookup(token)) for token in range(job.tokenizer.vocabulary_size)], np.int64)
        frame_bytes = sum(int(sizes[token]) for token in (job.begin, job.end) if token is not None)
        _token_sizes[key] = TokenSizes(sizes, frame_bytes)
    return _token_sizes[key]
