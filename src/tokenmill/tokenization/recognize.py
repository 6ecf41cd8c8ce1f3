"""Which tokenizer made some ids: every candidate decodes and encodes a sample, and those that fit are named.

Some vocabularies share most tokens, and only some text has other ids in each. If the sample has no such text, the
result names all vocabularies that fit, and the evidence that is missing.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from tokenmill.errors import TokenizerError
from tokenmill.humanize import count
from tokenmill.tokenization import vocabulary_cache
from tokenmill.tokenization.engines.protocol import Tokens
from tokenmill.tokenization.resolve import resolve, resolve_offline
from tokenmill.tokenization.round_trip import (
    MIN_DOCUMENTS,
    MIN_EQUAL,
    RoundTrip,
    TokenCheck,
    choose_sample,
)
from tokenmill.tokenization.spec import TokenizerSpec
from tokenmill.tokenization.tokenizer_json import template_begin
from tokenmill.tokenization.vocabularies import DOCUMENT_ENDS, Vocabulary

# A token is taken for a begin or end token if it begins or ends at least this share of the documents.
MIN_FRAMED = 0.5
# A candidate is distinguished by at least MIN_TELLING documents that fit it and not the other candidate. The documents
# that fit only the other candidate are at most MAX_CONTRARY times as many.
MIN_TELLING, MAX_CONTRARY = 3, 0.1
# Of a vocabulary that a relative of it made, with other cuts of text, many documents are equal, and not nearly all.
MIN_SURE = 0.98
# A candidate with a smaller share of equal documents is not named.
MIN_NAMED = 0.3
# Tokens of a window of a stream that has no end token.
WINDOW_TOKENS = 128
# A candidate that fits none of so many documents is not tried on the others.
FIRST_DOCUMENTS = 16
# Vocabularies that have all tokens of another one, and more.
EXTENDED = {"gpt2": "p50k_base", "r50k_base": "p50k_base"}


@dataclass(frozen=True, slots=True)
class IdSample:
    """Ids of a source: documents with their frame, or pieces of a stream that holds documents one after another.

    `largest` is the largest id that was seen anywhere in the source. A stream is `at_start` or `at_end` if the first
    piece is the start of a file, or the last piece its end.
    """

    pieces: Sequence[Tokens]
    is_stream: bool = False
    at_start: bool = False
    at_end: bool = False
    largest: int = 0


@dataclass(frozen=True, slots=True)
class TokenFrame:
    """The begin and end tokens of documents. `is_first` says whether the end token stands before each document.

    It is None if that is not known. `documents` are the documents that the sample has, as far as they can be counted.
    """

    begin: int | None = None
    end: int | None = None
    is_first: bool | None = None
    documents: int = 0


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a vocabulary makes of a sample: the shares, which documents are equal, and the frame that it sees."""

    vocabulary: Vocabulary
    names: tuple[str, ...]
    check: TokenCheck
    equal: list[bool]
    frame: TokenFrame
    trip: RoundTrip


@dataclass(frozen=True, slots=True)
class Recognition:
    """The candidates that fit, best first, and all others that were tried.

    `is_sure` says whether only one vocabulary fits. `evidence` says what is missing otherwise.
    """

    likely: list[Candidate]
    others: list[Candidate]
    is_sure: bool
    evidence: list[str]


def vocabularies_at_hand() -> tuple[list[Vocabulary], list[str]]:
    """The vocabularies that need no network: OpenAI's and those in the cache. Also the names that are not there."""
    import tiktoken  # noqa: PLC0415 - heavy

    found, missing = [], []
    for name in ["gpt2", *(name for name in tiktoken.list_encoding_names() if name != "gpt2")]:
        try:
            vocabulary = resolve_offline(name)
        except TokenizerError:
            vocabulary = None
        if vocabulary is None:
            missing.append(name)
        else:
            found.append(vocabulary)
    return found + vocabulary_cache.saved(), missing


def candidates_of(names: Sequence[str]) -> tuple[list[Vocabulary], list[str]]:
    """The named tokenizers, then those at hand, and the names of encodings that are not at hand."""
    at_hand, missing = vocabularies_at_hand()
    named = [(name, resolve(name)) for name in names]
    renamed = [Vocabulary(msgspec.structs.replace(each.spec, name=name), each.content) for name, each in named]
    return [*renamed, *at_hand], missing


class Recognizer:
    """Tries vocabularies on samples. `missing` are encodings of OpenAI that are not on this machine.

    An engine is loaded once for all samples.
    """

    def __init__(self, vocabularies: Sequence[Vocabulary], missing: Sequence[str] = ()) -> None:
        self._missing = missing
        self._trips: dict[tuple[object, ...], tuple[Vocabulary, RoundTrip]] = {}
        self._names: dict[tuple[object, ...], dict[str, None]] = {}
        for vocabulary in vocabularies:
            spec = vocabulary.spec
            key = spec.sha256, spec.pattern, *spec.added_tokens.items()
            if key not in self._trips:
                self._trips[key] = vocabulary, RoundTrip(vocabulary)
            self._names.setdefault(key, {})[spec.name] = None

    def recognize(self, sample: IdSample) -> Recognition:
        """Try each vocabulary on a sample."""
        tried: list[Candidate] = []
        for key, (vocabulary, trip) in self._trips.items():
            tried.append(_try(sample, vocabulary, trip, tuple(self._names[key]), tried))
        ranked = sorted(tried, key=lambda each: -each.check.equal_share)
        named = [each for each in ranked if each.check.equal and each.check.equal_share >= MIN_NAMED]
        likely: list[Candidate] = []
        for each in named:
            if not _is_worse(each, named[0]) and not any(_is_repeated(each, other) for other in likely):
                likely.append(each)
        evidence = _evidence(likely, self._missing)
        others = [each for each in ranked if each not in named or _is_worse(each, named[0])]
        return Recognition(likely, others, bool(likely) and not evidence, evidence)


def _try(
    sample: IdSample, vocabulary: Vocabulary, trip: RoundTrip, names: tuple[str, ...], before: Sequence[Candidate]
) -> Candidate:
    spec = vocabulary.spec
    if sample.largest >= spec.vocabulary_size:
        check = TokenCheck(spec.name, 0, 0, 0, 0, 0, outside_example=sample.largest)
        return Candidate(vocabulary, names, check, [], TokenFrame(), trip)
    frame, documents, is_cut = _split(sample, vocabulary)
    for other in before:  # the same tokens and pattern with other control tokens: nothing is encoded again
        known = other.vocabulary.spec
        same = (known.sha256, known.pattern, other.frame) == (spec.sha256, spec.pattern, frame)
        controls = [number for _, number in known.special_tokens.items() ^ spec.special_tokens.items()]
        if same and not any(np.isin(ids, controls).any() for ids in documents):
            check = msgspec.structs.replace(other.check, tokenizer=spec.name)
            return Candidate(vocabulary, names, check, other.equal, frame, trip)
    first = documents[:: max(len(documents) // FIRST_DOCUMENTS, 1)]
    check, equal = trip.check(first, is_cut=is_cut)
    if check.equal:
        check, equal = trip.check(documents, is_cut=is_cut)
    return Candidate(vocabulary, names, check, equal, frame, trip)


def _split(sample: IdSample, vocabulary: Vocabulary) -> tuple[TokenFrame, list[Tokens], bool]:
    """The frame that a vocabulary sees in a sample, a choice of documents without it, and whether they are cut."""
    if not sample.is_stream:
        frame = frame_of(sample.pieces, vocabulary)
        return frame, [_without(ids, frame) for ids in choose_sample(sample.pieces)], False
    end = _end_of_stream(sample.pieces, vocabulary.spec)
    documents = [] if end is None else [document for ids in sample.pieces for document in _between(ids, end)]
    frame = frame_of(documents, vocabulary)
    if end is not None:
        first, last = sample.pieces[0][:1], sample.pieces[-1][-1:]
        is_first = True if sample.at_start and end in first else False if sample.at_end and end in last else None
        ends = sum(int((ids == end).sum()) for ids in sample.pieces)
        frame = TokenFrame(frame.begin, end, is_first, ends)
    if len(documents) < MIN_DOCUMENTS:
        return frame, choose_sample(_windows(sample.pieces, end)), True
    return frame, choose_sample([_without(ids, frame) for ids in documents]), False


def _windows(pieces: Sequence[Tokens], end: int | None) -> list[Tokens]:
    """Ranges of a stream without an end token in them."""
    runs = pieces if end is None else [run for ids in pieces for run in np.split(ids, np.flatnonzero(ids == end))]
    plain = [run[1:] if len(run) and run[0] == end else run for run in runs]
    windows = (run[start : start + WINDOW_TOKENS] for run in plain for start in range(0, len(run), WINDOW_TOKENS))
    return [window for window in windows if len(window) >= WINDOW_TOKENS // 2]


def _between(ids: Tokens, end: int) -> list[Tokens]:
    """The whole documents between the end tokens of a piece."""
    places = np.flatnonzero(ids == end)
    return [each[1:] for each in np.split(ids, places)[1:-1] if len(each) > 1]


def _end_of_stream(pieces: Sequence[Tokens], spec: TokenizerSpec) -> int | None:
    """The control token that separates documents: the vocabulary's end token, or the most frequent control token."""
    counts: Counter[int] = Counter()
    special = np.array(sorted(spec.special_tokens.values()), np.uint32)
    for ids in pieces:
        numbers, amounts = np.unique(ids[np.isin(ids, special)], return_counts=True)
        counts.update(dict(zip(numbers.tolist(), amounts.tolist(), strict=True)))
    ends = [spec.end_of_text, *(spec.added_tokens.get(spelling) for spelling in DOCUMENT_ENDS)]
    found = [end for end in ends if end is not None and counts[end] > 1]
    return found[0] if found else next((number for number, amount in counts.most_common(1) if amount > 1), None)


def frame_of(documents: Sequence[Tokens], vocabulary: Vocabulary) -> TokenFrame:
    """The begin and end tokens of documents: control tokens at the edges of most of them."""
    spec = vocabulary.spec
    template = template_begin(vocabulary.content) if spec.kind == "huggingface" else None
    controls = {*spec.special_tokens.values(), spec.end_of_text, template[1] if template else None}
    whole = [ids for ids in documents if len(ids)]
    edges: list[int | None] = []
    for edge in (0, -1):
        common = Counter(int(ids[edge]) for ids in whole).most_common(1)
        is_frame = bool(common) and common[0][0] in controls and common[0][1] >= MIN_FRAMED * len(whole)
        edges.append(common[0][0] if is_frame else None)
    begin, end = edges
    return TokenFrame(begin, end, False if end is not None else None, len(documents))


def _without(ids: Tokens, frame: TokenFrame) -> Tokens:
    """A document without its begin and end token."""
    start = int(frame.begin is not None and len(ids) > 0 and ids[0] == frame.begin)
    stop = len(ids) - int(frame.end is not None and len(ids) > start and ids[-1] == frame.end)
    return ids[start:stop]


def _is_worse(candidate: Candidate, best: Candidate) -> bool:
    """Whether enough documents fit the best candidate only."""
    if len(candidate.equal) != len(best.equal):  # the frames are others, so the documents are others
        return candidate.check.equal_share < MIN_EQUAL * best.check.equal_share
    theirs = sum(mine and not other for mine, other in zip(candidate.equal, best.equal, strict=True))
    ours = sum(mine and not other for mine, other in zip(best.equal, candidate.equal, strict=True))
    return ours >= MIN_TELLING and theirs <= MAX_CONTRARY * ours


def _is_repeated(candidate: Candidate, other: Candidate) -> bool:
    """Whether two vocabularies are of one name and have the same tokens, as two files of a tokenizer do."""
    has_name = not {*candidate.names}.isdisjoint(other.names)
    return has_name and not _extra(candidate, other) and not _extra(other, candidate)


def _evidence(likely: Sequence[Candidate], missing: Sequence[str]) -> list[str]:
    """What is missing to tell the best candidate from the others that fit."""
    if not likely:
        return []
    best = likely[0]
    evidence = [f"{best.names[0]} or {other.names[0]}: {_difference(best, other)}" for other in likely[1:]]
    extended = {EXTENDED[name] for name in best.names if name in EXTENDED} & set(missing)
    evidence += [f"{name} was not tried: its vocabulary is not on this machine" for name in sorted(extended)]
    if best.check.equal_share < MIN_SURE:
        differing = f"{best.check.documents - best.check.equal:,} of {count(best.check.documents, 'document')} differ"
        evidence.append(f"{differing}: their text was changed, or the tokenizer is a relative of {best.names[0]}")
    if best.check.equal < MIN_DOCUMENTS:
        evidence.append(f"only {count(best.check.equal, 'document')} could be compared")
    return evidence


def _difference(best: Candidate, other: Candidate) -> str:
    """Why two vocabularies both fit."""
    extra = [(each, _extra(each, of)) for each, of in ((other, best), (best, other))]
    for candidate, ids in extra:
        if ids:
            text = candidate.trip.token_bytes(ids[0]).decode(errors="backslashreplace")
            only = f"{count(len(ids), 'token')} that only {candidate.names[0]} has"
            return f"no sampled text has one of the {only}, such as {ids[0]} {text!r}"
    return "they have the same tokens, and no sampled text is split in different ways"


def _extra(candidate: Candidate, of: Candidate) -> list[int]:
    """The ids whose token another vocabulary does not have."""
    return _extra_ids(candidate.trip, of.trip)


@functools.lru_cache(maxsize=64)
def _extra_ids(trip: RoundTrip, of: RoundTrip) -> list[int]:
    size, known = trip.spec.vocabulary_size, of.spec.vocabulary_size
    return [number for number in range(size) if number >= known or trip.token_bytes(number) != of.token_bytes(number)]
