"""The records of a store's statistics: `stats` prints them, `report` draws them, and both write them as JSON."""

from __future__ import annotations

import msgspec

from tokenmill.analysis.history import History
from tokenmill.humanize import Readable
from tokenmill.store.job import Run
from tokenmill.store.manifest import ControlTokens


class TokenShare(Readable, msgspec.Struct, frozen=True):
    """What one source or one value contributes to a store. `bytes` is None if tokens do not determine it."""

    name: str
    documents: int
    tokens: int
    bytes: int | None


class Breakdown(Readable, msgspec.Struct, frozen=True):
    """A store by source, or by the values of a column: the `largest`, and the `others` together, of `count` in all.

    If `folded`, there were too many values to count each: there are more than `count`, and the counts in `largest` are
    lower bounds.
    """

    by: str
    count: int
    largest: list[TokenShare]
    others: TokenShare | None
    folded: bool = False

    @property
    def shares(self) -> list[TokenShare]:
        """The largest, and the others if there are any."""
        return [*self.largest, *([self.others] if self.others is not None else [])]


class LengthBin(Readable, msgspec.Struct, frozen=True):
    """Documents of `first` to `last` tokens."""

    first: int
    last: int
    documents: int
    tokens: int


class Lengths(Readable, msgspec.Struct, frozen=True):
    """Lengths of documents in tokens, including begin and end tokens. Quantiles are at most 1 % off.

    `shorter_than` maps powers of two to the fraction of documents that are shorter, and the fraction of their tokens.
    """

    mean: float
    shortest: int
    longest: int
    quantiles: dict[str, int]
    bins: list[LengthBin]
    shorter_than: dict[int, tuple[float, float]]


class TokenCount(Readable, msgspec.Struct, frozen=True):
    """A token id, its bytes as readable text (`piece`), and how often it occurs in the store."""

    id: int
    piece: str
    count: int


class VocabularyUse(Readable, msgspec.Struct, frozen=True):
    """Which tokens are used. `covering` maps a fraction of all tokens to the number of most frequent ids that reach it.

    `first_unused` lists only ids of more than one byte.
    """

    size: int
    used: int
    most_frequent: list[TokenCount]
    covering: dict[str, int]
    first_unused: list[TokenCount]


class DuplicateGroup(Readable, msgspec.Struct, frozen=True):
    """Documents with equal tokens, and the location of the first of them."""

    copies: int
    tokens: int
    source: str
    row: int


class Duplicates(Readable, msgspec.Struct, frozen=True):
    """Duplicate documents. The first document of each group of equal ones is not counted."""

    groups: int
    documents: int
    tokens: int
    largest: list[DuplicateGroup]


class BadRowReason(Readable, msgspec.Struct, frozen=True):
    """A row in quarantine, and why it is there. In JSON Lines and text, `byte` is its position, and `line` its line."""

    file: str
    reason: str
    detail: str
    row: int | None = None
    byte: int | None = None
    line: int | None = None


class SkippedRows(Readable, msgspec.Struct, frozen=True):
    """Source rows that did not become documents, by reason, and the first quarantined ones."""

    rows: int
    quarantined: int
    reasons: dict[str, int]
    first: list[BadRowReason]


class Provenance(Readable, msgspec.Struct, frozen=True):
    """The run that made the store, and the checksums that identify it. Of several stores, the counts are of all."""

    run: Run
    units: int
    sources: int
    source_bytes: int
    checksums: dict[str, str]


class Statistics(Readable, msgspec.Struct, frozen=True):
    """All statistics of a store. `bytes_per_token_bins[i]` counts the documents with i tenths of a byte per token.

    The bins, and the bytes by source and by value, are None unless tokens stand for exactly the bytes of the text. Of
    several stores, `stores` has the counts of each, `history` is None, and `origin` describes the first.
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
    stores: Breakdown | None = None
    control_tokens: ControlTokens = ControlTokens(0, 0)
    trained_tokens: int | None = None
