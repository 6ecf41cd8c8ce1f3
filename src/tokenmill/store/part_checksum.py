"""The two checksums of a part."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
import xxhash

from tokenmill.storage.digest import Hasher

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

    @property
    def train(self) -> Any:
        """The spans that are trained on, or None."""


def _columns(content: PartColumns) -> list[memoryview]:
    columns = [content.tokens, content.offsets, content.source, content.row]
    if content.train is not None:
        columns += [content.train.values, content.train.offsets]
    return [np.ascontiguousarray(column).data.cast("B") for column in columns]


def checksum(content: PartColumns, summary: msgspec.Struct) -> str:
    """BLAKE3 of the values of the columns, in order, and the summary in JSON with an empty `blake3`."""
    digest = Hasher()
    for column in _columns(content):
        digest.update(column)
    digest.update(msgspec.json.encode(msgspec.structs.replace(summary, blake3="")))
    return digest.hexdigest()


def fast_checksum(content: PartColumns) -> str:
    """XXH3 of the values of the columns, in order."""
    digest = xxhash.xxh3_128()
    for column in _columns(content):
        digest.update(column)
    return digest.hexdigest()


def with_checksum(summary: Summary, content: PartColumns) -> Summary:
    """The summary with both checksums filled in."""
    summary = msgspec.structs.replace(summary, xxh3=fast_checksum(content))
    return msgspec.structs.replace(summary, blake3=checksum(content, summary))
