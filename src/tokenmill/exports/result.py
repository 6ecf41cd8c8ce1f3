"""The result of an export."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tokenmill.humanize import Readable
from tokenmill.token_files.protocol import ShardRecord


class ExportedSplit(Readable, msgspec.Struct, frozen=True):
    """What a split holds, and how many tokens are in no shard because of `--tail drop`.

    `long_documents` with `long_tokens` tokens are left out, because they are longer than a packed row.
    """

    shards: int
    documents: int
    tokens: int
    tokens_left_out: int
    long_documents: int = 0
    long_tokens: int = 0


class ExportResult(Readable, msgspec.Struct, frozen=True):
    """The result of an export. Rates and deaths are of this call. `use` says how the trainer reads the files.

    `stores` are the exported stores, in order. `sources` has the training tokens of each source of a recipe.
    """

    directory: str
    format: str
    trainer: str
    dtype: str
    end_token: str
    shuffle: int | None
    files: int
    bytes: int
    splits: dict[str, ExportedSplit]
    shards_done_now: int
    deaths: int
    seconds: float
    tokens_per_second: float
    notices: list[str]
    use: str = ""
    stores: list[str] = []
    sources: dict[str, int] = {}

    def __fspath__(self) -> str:
        """The directory, so that functions that take its path take the result."""
        return self.directory


def by_split(records: Sequence[ShardRecord]) -> dict[str, list[ShardRecord]]:
    """The records of each split, in order."""
    splits: dict[str, list[ShardRecord]] = {}
    for record in records:
        splits.setdefault(record.split, []).append(record)
    return splits


def exported_split(of_split: Sequence[ShardRecord], skipped_tokens: int) -> ExportedSplit:
    """The counts of a split."""
    return ExportedSplit(
        shards=len({record.files[0].name for record in of_split}),
        documents=sum(record.begun for record in of_split),
        tokens=sum(record.tokens for record in of_split),
        tokens_left_out=skipped_tokens,
        long_documents=sum(record.long_documents for record in of_split),
        long_tokens=sum(record.long_tokens for record in of_split),
    )
