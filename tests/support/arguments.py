"""The keyword arguments of public functions, for tests that pass them on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypedDict

from tokenmill.choices import BadDocumentAction, EndTokenPosition, EngineName, Tail, TokenType
from tokenmill.executors.outcomes import Pool
from tokenmill.executors.progress import Reporter


class PrepareArguments(TypedDict, total=False):
    """Arguments of `tokenmill.prepare` besides the sources and `out`."""

    tokenizer: str
    version: str | None
    split: str | Sequence[str]
    config: str | None
    keep: str | Sequence[str] | None
    column: str | None
    separator: str | None
    engine: EngineName
    eot: str | int | None
    bos: str | int | None
    workers: int | None
    memory: str | int | None
    unit_bytes: str | int | None
    limit_units: int | None
    on_bad: BadDocumentAction
    max_bad: str | float
    max_skipped: str | float
    document_timeout: str | float
    quarantine_text: bool
    metrics: str | os.PathLike[str] | None
    max_document_bytes: str | int | None
    moved: str | Sequence[str]
    repair: bool
    retry_quarantine: bool
    to: str | Sequence[str]
    val: str | float | None
    shuffle: int | None
    shard_tokens: str | int | None
    tail: Tail | None
    reporter: Reporter | None
    on: str
    rank: int | None
    of: int | None
    executor: Pool | None
    force: bool


class ExportArguments(TypedDict, total=False):
    """Arguments of `tokenmill.export` besides the store, `to` and `out`."""

    val: str | float | None
    shuffle: int | None
    shard_tokens: str | int | None
    tail: Tail | None
    dtype: TokenType | None
    sequence_tokens: str | int | None
    eot_position: EndTokenPosition | None
    columns: str | None
    name: str | None
    workers: int | None
    memory: str | int | None
    on: str
    reporter: Reporter | None
    executor: Pool | None
    force: bool
