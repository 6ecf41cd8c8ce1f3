"""A part of which documents are erased, and its kept columns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.storage import Folder
from tokenmill.store.kept import content_hash, kept_name, nulled, publish_kept, read_kept
from tokenmill.store.mismatch import rechecked_name
from tokenmill.store.part import ErasedRange, PartContent, PartSummary, erased_changes, part_name, publish_part
from tokenmill.store.part_checksum import with_checksum

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ErasedPart:
    """A part without the tokens of some documents, and its kept columns without their values."""

    summary: PartSummary
    content: PartContent
    kept: pa.Table | None

    @classmethod
    def of(  # noqa: PLR0913, PLR0917 - a part and what is erased in it
        cls,
        folder: Folder,
        summary: PartSummary,
        content: PartContent,
        documents: Indices,
        change: int,
        token: int,
    ) -> ErasedPart:
        """Replace the tokens of these documents by `token`. Lengths and offsets stay as they are."""
        tokens = content.tokens.copy()
        for first, last in zip(
            content.offsets[documents].tolist(), content.offsets[documents + 1].tolist(), strict=True
        ):
            tokens[first:last] = token
        changes = np.zeros(summary.documents, np.int64) if content.erased is None else content.erased.copy()
        changes[documents] = change
        kept = (
            None
            if isinstance(summary.kept, msgspec.UnsetType)
            else nulled(kept_columns(folder, summary, changes), changes)
        )
        after = msgspec.structs.replace(
            summary,
            erased=erased_ranges(changes),
            kept=summary.kept if kept is None else content_hash(kept),
        )
        replaced = replace(content, tokens=tokens, erased=changes)
        return cls(with_checksum(after, replaced), replaced, kept)

    def files(self, before: PartSummary) -> list[tuple[str, str, str]]:
        """The files that differ from those of the part before: name, old checksum and new checksum."""
        files = [(part_name(before.unit), before.sha256, self.summary.sha256)]
        if self.kept is not None:
            files.append((kept_name(before.unit), str(before.kept), str(self.summary.kept)))
        return files

    def publish(self, folder: Folder) -> None:
        """Replace the kept columns, then the part."""
        if self.kept is not None:
            publish_kept(folder, self.summary.unit, self.kept, durable=True)
        publish_part(folder, self.summary, self.content, replace=True)
        if folder.exists(rechecked_name(self.summary.unit)):
            with folder.publish(rechecked_name(self.summary.unit)) as file:
                file.write(self.summary.sha256.encode())


def erased_ranges(changes: Indices) -> tuple[ErasedRange, ...]:
    """Ranges of consecutive documents that one change erased."""
    starts = np.flatnonzero(np.diff(changes, prepend=-1))
    stops = np.append(starts[1:], len(changes))
    ranges = zip(starts.tolist(), stops.tolist(), changes[starts].tolist(), strict=True)
    return tuple(ErasedRange(start, stop - 1, change) for start, stop, change in ranges if change)


def kept_columns(folder: Folder, summary: PartSummary, changes: Indices) -> pa.Table:
    """The kept columns of a part. A killed worker may have replaced them already, and the part not yet."""
    return read_kept(folder, summary, (), lambda values: content_hash(nulled(values, changes)))


def erased_numbers(summary: PartSummary) -> Indices:
    """The number of the change that erased each document of a part, or 0."""
    changes = erased_changes(summary)
    return np.zeros(summary.documents, np.int64) if changes is None else changes


def null_kept(folder: Folder, summary: PartSummary) -> None:
    """Remove the values of erased documents from kept columns that were restored from a copy."""
    if isinstance(summary.kept, msgspec.UnsetType):
        return
    changes = erased_numbers(summary)
    kept = kept_columns(folder, summary, changes)
    if content_hash(kept) != summary.kept:
        publish_kept(folder, summary.unit, nulled(kept, changes), durable=True)
