"""Makes statistics of the counts of all parts. Memory depends on vocabulary and sources only."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

import numpy as np
import pyarrow as pa

from tokenmill.analysis.by_column import ValueCounts
from tokenmill.analysis.count_parts import PartCounts
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
from tokenmill.analysis.visible_text import decode_token
from tokenmill.store.collection import Collection

MAX_LARGEST = 20
# The columns of a manifest that a TokenShare holds.
STORE_COUNTS = ("documents", "tokens", "text_bytes")
SHOWN_TOKENS = 40
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
COVERED = (0.5, 0.9, 0.99)
# Common context lengths, and some shorter and longer ones.
CONTEXTS = tuple(1 << power for power in range(7, 21))


def summarize_lengths(counts: LengthCounts) -> Lengths:
    """The statistics of document lengths."""
    documents, tokens = int(counts.documents.sum()), int(counts.tokens.sum())
    longest = counts.longest or 0
    contexts = ([length for length in CONTEXTS if length // 2 <= longest] or CONTEXTS[:1]) if documents else []
    shorter = {length: counts.shorter_than(length) for length in contexts}
    return Lengths(
        mean=round(tokens / documents, 1) if documents else 0.0,
        shortest=counts.shortest or 0,
        longest=longest,
        quantiles={f"{fraction:.0%}": counts.quantile(fraction) for fraction in QUANTILES},
        bins=_length_bins(counts),
        shorter_than={
            length: (round(shorter_documents / documents, 6), round(their_tokens / max(tokens, 1), 6))
            for length, (shorter_documents, their_tokens) in shorter.items()
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


def summarize_vocabulary(counts: Counts, token_bytes: Callable[[int], bytes]) -> VocabularyUse:
    """The most frequent and the first unused ids. `token_bytes` returns the bytes of an id."""

    def token_count(token: int) -> TokenCount:
        return TokenCount(token, decode_token(token_bytes(token)), int(counts[token]))

    ranked = np.argsort(-counts, kind="stable")
    used = int(np.count_nonzero(counts))
    covered = np.cumsum(counts[ranked])
    total = int(covered[-1]) if len(covered) else 0
    # Every vocabulary has all single bytes, and most texts use few of them: listing those would tell nothing.
    unused = (token for token in np.flatnonzero(counts == 0).tolist() if len(token_bytes(token)) > 1)
    return VocabularyUse(
        size=len(counts),
        used=used,
        most_frequent=[token_count(token) for token in ranked[: min(SHOWN_TOKENS, used)].tolist()],
        covering={f"{fraction:.0%}": int(np.searchsorted(covered, fraction * total)) + 1 for fraction in COVERED}
        if total
        else {},
        first_unused=[token_count(token) for token in islice(unused, SHOWN_TOKENS)],
    )


def breakdown_by_source(totals: PartCounts, paths: pa.ChunkedArray) -> Breakdown:
    """The store by source: those with most tokens, and the others together."""
    documents, tokens, text_bytes = totals.by_source
    sizes = text_bytes if totals.byte_exact else None
    ranked = np.lexsort((np.arange(len(tokens)), -documents, -tokens))
    shown, rest = ranked[:MAX_LARGEST], ranked[MAX_LARGEST:]
    largest = [
        TokenShare(paths[i].as_py(), int(documents[i]), int(tokens[i]), None if sizes is None else int(sizes[i]))
        for i in shown.tolist()
    ]
    others = None
    if len(rest):
        size = None if sizes is None else int(sizes[rest].sum())
        others = TokenShare(f"{len(rest):,} others", int(documents[rest].sum()), int(tokens[rest].sum()), size)
    return Breakdown("source", len(tokens), largest, others)


def breakdown_by_store(stores: Collection) -> Breakdown | None:
    """The tokens by store, in the order of the stores; None for a single store."""
    if len(stores.members) == 1:
        return None
    shares = [
        TokenShare(member.directory, *(int(np.sum(member.manifest[name].to_numpy())) for name in STORE_COUNTS))
        for member in stores.members
    ]
    return Breakdown("store", len(shares), shares, None)


def breakdown_by_value(column: str, counts: ValueCounts, *, byte_exact: bool) -> Breakdown:
    """The store by the values of a column."""
    ranked = counts.ranked()
    largest = [
        TokenShare(value, count.documents, count.tokens, count.bytes if byte_exact else None)
        for value, count in ranked[:MAX_LARGEST]
    ]
    rest = [count for _, count in ranked[MAX_LARGEST:]]
    rest += [counts.others] * counts.folded
    others = None
    if rest:
        name = "all others" if counts.folded else f"{len(rest):,} others"
        size = sum(count.bytes for count in rest) if byte_exact else None
        others = TokenShare(name, sum(count.documents for count in rest), sum(count.tokens for count in rest), size)
    return Breakdown(column, len(ranked), largest, others, counts.folded)


def summarize_duplicates(counts: DuplicateCounts, paths: pa.ChunkedArray) -> Duplicates:
    """The statistics of duplicate documents, with the paths of their sources."""
    largest = [
        DuplicateGroup(group.copies, group.tokens, paths[group.source].as_py(), group.row) for group in counts.largest
    ]
    return Duplicates(counts.groups, counts.documents, counts.tokens, largest)
