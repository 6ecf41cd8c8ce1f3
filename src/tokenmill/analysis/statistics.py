"""The figures of a store, as records: what `stats` prints, what `report` draws, and what JSON has of both."""

from __future__ import annotations

import msgspec

from tokenmill.analysis.history import History


class TokenShare(msgspec.Struct, frozen=True):
    """What a source, or a value of a column, has of a store. `bytes` is None where it cannot be told from tokens."""

    name: str
    documents: int
    tokens: int
    bytes: int | None


class Breakdown(msgspec.Struct, frozen=True):
    """A store by source, or by the values of a column: the largest, and the others together.

    There are `count` of them in all. If `folded`, there were too many to be counted apart: there are more than `count`,
    and those that are named have at least as much as it says.
    """

    by: str
    count: int
    largest: list[TokenShare]
    others: TokenShare | None
    folded: bool = False


class LengthBin(msgspec.Struct, frozen=True):
    """Documents of `first` to `last` tokens."""

    first: int
    last: int
    documents: int
    tokens: int


class Lengths(msgspec.Struct, frozen=True):
    """Lengths of documents in tokens, begin and end tokens included; quantiles are at most 1 % off.

    `shorter_than` has, for some powers of two, the share of the documents that are shorter, and that of their tokens.
    """

    mean: float
    shortest: int
    longest: int
    quantiles: dict[str, int]
    bins: list[LengthBin]
    shorter_than: dict[int, tuple[float, float]]


class TokenCount(msgspec.Struct, frozen=True):
    """An id, the bytes that it stands for as people can read them, and how often it is in the store."""

    id: int
    piece: str
    count: int


class VocabularyUse(msgspec.Struct, frozen=True):
    """Which tokens are used. `covering` tells how many of the most frequent ones make up a share of all tokens.

    `first_unused` has those of more than one byte.
    """

    size: int
    used: int
    most_frequent: list[TokenCount]
    covering: dict[str, int]
    first_unused: list[TokenCount]


class DuplicateGroup(msgspec.Struct, frozen=True):
    """Documents that are equal, token by token, and where the first of them is."""

    copies: int
    tokens: int
    source: str
    row: int


class Duplicates(msgspec.Struct, frozen=True):
    """Documents that are in the store already: beyond the first of each group of equal ones."""

    groups: int
    documents: int
    tokens: int
    largest: list[DuplicateGroup]


class BadRowReason(msgspec.Struct, frozen=True):
    """A row in quarantine."""

    file: str
    row: int
    reason: str
    detail: str


class SkippedRows(msgspec.Struct, frozen=True):
    """Rows of the sources that are not documents of the store, by reason; the first of those in quarantine."""

    rows: int
    quarantined: int
    reasons: dict[str, int]
    first: list[BadRowReason]


class Provenance(msgspec.Struct, frozen=True):
    """How the store was made, and the checksums that tell it from any other."""

    tokenizer: str
    vocabulary_size: int
    begin: int | None
    end: int | None
    column: str
    separator: str | None
    unit_bytes: int
    limit_units: int | None
    engine: str
    versions: dict[str, str]
    units: int
    sources: int
    source_bytes: int
    dtype: str
    checksums: dict[str, str]


class Statistics(msgspec.Struct, frozen=True):
    """All figures of a store. `bytes_per_token` bins have the documents with so many tenths of a byte per token.

    They, and bytes by source and by value, are there only if the tokens stand for exactly the bytes of the text.
    """

    directory: str
    documents: int
    tokens: int
    text_bytes: int
    bytes_per_token: float | None
    bytes_per_token_bins: list[int] | None
    lengths: Lengths
    vocabulary: VocabularyUse
    sources: Breakdown
    columns: list[Breakdown]
    duplicates: Duplicates | None
    skipped: SkippedRows
    history: History | None
    origin: Provenance
    notices: list[str]
