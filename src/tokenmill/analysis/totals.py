"""Add up what workers have counted, and make figures of it. What is held depends on vocabulary and sources only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
import pyarrow as pa

from tokenmill.analysis.by_column import ValueCounts
from tokenmill.analysis.count_parts import RATIO_BINS, PartCounts
from tokenmill.analysis.duplicates import DuplicateCounts
from tokenmill.analysis.lengths import Counts, LengthCounts
from tokenmill.analysis.statistics import (
    Breakdown,
    DuplicateGroup,
    Duplicates,
    LengthBin,
    Lengths,
    TokenCount,
    TokenShare,
    VocabularyUse,
)
from tokenmill.analysis.visible_text import spelled

SHOWN_SHARES = 20
SHOWN_TOKENS = 40
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
COVERED = (0.5, 0.9, 0.99)
CONTEXTS = tuple(1 << power for power in range(7, 21))
"""Lengths that people train with, and some around them."""

Piece = Callable[[int], bytes]


@dataclass
class Totals:
    """What all parts hold."""

    vocabulary_size: int
    source_count: int
    tokens: Counts = field(init=False)
    by_source: Counts = field(init=False)
    lengths: LengthCounts = field(default_factory=LengthCounts)
    ratios: Counts = field(default_factory=lambda: np.zeros(RATIO_BINS, np.int64))
    text_bytes: int = 0
    faithful: bool = True
    skipped: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.tokens = np.zeros(self.vocabulary_size, np.int64)
        self.by_source = np.zeros((3, self.source_count), np.int64)

    def add(self, counted: PartCounts) -> None:
        """Take over what some parts hold."""
        self.tokens += counted.tokens
        self.lengths.join(counted.lengths)
        self.ratios += counted.ratios
        self.by_source[:, counted.first : counted.first + counted.by_source.shape[1]] += counted.by_source
        self.text_bytes += counted.text_bytes
        self.faithful &= counted.faithful
        self.skipped.update(counted.skipped)

    @property
    def token_count(self) -> int:
        """How many tokens there are."""
        return int(self.tokens.sum())

    @property
    def document_count(self) -> int:
        """How many documents there are."""
        return int(self.lengths.documents.sum())


def length_figures(counts: LengthCounts) -> Lengths:
    """The lengths of documents, in bins of an octave and the like."""
    documents, tokens = int(counts.documents.sum()), int(counts.tokens.sum())
    longest = counts.longest or 0
    contexts = ([length for length in CONTEXTS if length // 2 <= longest] or CONTEXTS[:1]) if documents else []
    shorter = {length: counts.shorter_than(length) for length in contexts}
    return Lengths(
        mean=round(tokens / documents, 1) if documents else 0.0,
        shortest=counts.shortest or 0,
        longest=longest,
        quantiles={f"{share:.0%}": counts.quantile(share) for share in QUANTILES},
        bins=_length_bins(counts),
        shorter_than={
            length: (round(some / documents, 6), round(their / max(tokens, 1), 6))
            for length, (some, their) in shorter.items()
        },
    )


def _length_bins(counts: LengthCounts) -> list[LengthBin]:
    """Two bins for each octave, from the shortest document to the longest."""
    if counts.shortest is None or counts.longest is None:
        return []
    edges = [0, 1, 2, 3]
    while edges[-1] <= counts.longest:
        edges.append(edges[-2] * 2)
    first = int(np.searchsorted(edges, counts.shortest, side="right")) - 1
    return [_length_bin(counts, start, stop) for start, stop in zip(edges[first:-1], edges[first + 1 :], strict=True)]


def _length_bin(counts: LengthCounts, start: int, stop: int) -> LengthBin:
    (before, tokens_before), (until, tokens_until) = counts.shorter_than(start), counts.shorter_than(stop)
    return LengthBin(start, stop - 1, until - before, tokens_until - tokens_before)


def vocabulary_figures(counts: Counts, piece: Piece) -> VocabularyUse:
    """Which tokens are used, and how often the most frequent ones are."""
    ranked = np.argsort(-counts, kind="stable")
    used = int(np.count_nonzero(counts))
    covered = np.cumsum(counts[ranked])
    total = int(covered[-1]) if len(covered) else 0
    return VocabularyUse(
        size=len(counts),
        used=used,
        most_frequent=[_token_count(counts, token, piece) for token in ranked[: min(SHOWN_TOKENS, used)].tolist()],
        covering={f"{share:.0%}": int(np.searchsorted(covered, share * total)) + 1 for share in COVERED}
        if total
        else {},
        first_unused=[_token_count(counts, token, piece) for token in _first_unused(counts, piece)],
    )


def _first_unused(counts: Counts, piece: Piece) -> Iterator[int]:
    """The first that are not used. Every vocabulary has all bytes, many of which are in no text: they tell nothing."""
    unused = (token for token in np.flatnonzero(counts == 0).tolist() if len(piece(token)) > 1)
    return islice(unused, SHOWN_TOKENS)


def _token_count(counts: Counts, token: int, piece: Piece) -> TokenCount:
    return TokenCount(token, spelled(piece(token)), int(counts[token]))


def source_figures(tally: Totals, paths: pa.ChunkedArray) -> Breakdown:
    """The store by source: those with most tokens, and the others together."""
    documents, tokens, written = tally.by_source
    ranked = np.lexsort((np.arange(len(tokens)), -documents, -tokens))
    shown, rest = ranked[:SHOWN_SHARES], ranked[SHOWN_SHARES:]
    largest = [
        TokenShare(paths[i].as_py(), int(documents[i]), int(tokens[i]), int(written[i]) if tally.faithful else None)
        for i in shown.tolist()
    ]
    others = None
    if len(rest):
        size = int(written[rest].sum()) if tally.faithful else None
        others = TokenShare(f"{len(rest):,} others", int(documents[rest].sum()), int(tokens[rest].sum()), size)
    return Breakdown("source", len(tokens), largest, others)


def value_figures(column: str, counts: ValueCounts, *, faithful: bool) -> Breakdown:
    """The store by the values of a column."""
    ranked = counts.ranked()
    largest = [
        TokenShare(value, each.documents, each.tokens, each.bytes if faithful else None)
        for value, each in ranked[:SHOWN_SHARES]
    ]
    rest = [each for _, each in ranked[SHOWN_SHARES:]]
    rest += [counts.others] * counts.folded
    others = None
    if rest:
        name = "all others" if counts.folded else f"{len(rest):,} others"
        size = sum(each.bytes for each in rest) if faithful else None
        others = TokenShare(name, sum(each.documents for each in rest), sum(each.tokens for each in rest), size)
    return Breakdown(column, len(ranked), largest, others, counts.folded)


def duplicate_figures(found: DuplicateCounts, paths: pa.ChunkedArray) -> Duplicates:
    """The documents that are in the store more than once."""
    largest = [DuplicateGroup(each.copies, each.tokens, paths[each.source].as_py(), each.row) for each in found.largest]
    return Duplicates(found.groups, found.documents, found.tokens, largest)
