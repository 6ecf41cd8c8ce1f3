"""The two checksums of a part."""

from __future__ import annotations

import hashlib
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
import xxhash

Summary = TypeVar("Summary", bound=msgspec.Struct)


class PartColumns(Protocol):
    """The columns of a part (see `PartContent`)."""

    @property
    def tokens(self) -> Any:
        """The tokens of all documents."""

    @property
    def offsets(self) -> Any:
        """The position of each document."""

    @property
    def source(self) -> Any:
        """The source of each document."""

    @property
    def row(self) -> Any:
        """The row of each document."""


def _columns(content: PartColumns) -> list[memoryview]:
    columns = (content.tokens, content.offsets, content.source, content.row)
    return [np.ascontiguousarray(column).data for column in columns]


def checksum(content: PartColumns, summary: msgspec.Struct) -> str:
    """SHA-256 of the values of the columns, in order, and the summary in JSON with an empty `sha256`."""
    digest = hashlib.sha256()
    for column in _columns(content):
        digest.update(column)
    digest.update(_hashed(summary))
    return digest.hexdigest()


def fast_checksum(content: PartColumns) -> str:
    """XXH3 of the values of the columns, in order."""
    digest = xxhash.xxh3_128()
    for column in _columns(content):
        digest.update(column)
    return digest.hexdigest()


def _hashed(summary: msgspec.Struct) -> bytes:
    """The summary as it enters the checksum. Parts of format 1 do not have the fields after `skipped`."""
    empty = msgspec.structs.replace(summary, sha256="")
    if getattr(empty, "xxh3"):  # noqa: B009 - a summary is a PartSummary
        return msgspec.json.encode(empty)
    fields = ("unit", "job", "documents", "tokens", "text_bytes", "sha256", "skipped")
    return msgspec.json.encode({name: getattr(empty, name) for name in fields})


def with_checksum(summary: Summary, content: PartColumns) -> Summary:
    """The summary with both checksums filled in."""
    summary = msgspec.structs.replace(summary, xxh3=fast_checksum(content))
    return msgspec.structs.replace(summary, sha256=checksum(content, summary))
