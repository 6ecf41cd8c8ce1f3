"""A part of which documents are erased, with its kept columns and its rows in quarantine.

What erasing gives does not depend on the file that it begins with: the part of before all changes, or of after some of
them. So every earlier file of a unit can replace a lost one.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from tokenmill.errors import StoreError
from tokenmill.storage import AlreadyPublishedError, Folder, folder_at
from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.store import quarantine
from tokenmill.store.kept import content_hash, nulled, publish_kept, read_kept_file
from tokenmill.store.layout import KEPT, PARTS, QUARANTINE
from tokenmill.store.part import (
    ErasedRange,
    PartContent,
    PartSummary,
    check_content,
    open_part_file,
    publish_part,
    with_checksum,
)

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Erased:
    """What changes have erased in a unit: `changes[i]` is the change that erased document i, or 0; rows in quarantine.

    `token` replaces the tokens of a document.
    """

    changes: Indices
    rows: frozenset[tuple[str, int]]
    token: int

    def part(self, summary: PartSummary, content: PartContent, kept: str) -> tuple[PartSummary, PartContent]:
        """The part without the tokens of these documents. Lengths and offsets stay as they are.

        `kept` is the hash of the kept columns without the values of the documents; empty without any.
        """
        after = msgspec.structs.replace(
            summary,
            erased=_ranges(self.changes),
            erased_rows=len(self.rows),
            kept=kept,
        )
        replaced = content.erase(self.changes, self.token)
        return with_checksum(after, replaced), replaced


def _ranges(changes: Indices) -> tuple[ErasedRange, ...]:
    """Ranges of consecutive documents that one change erased."""
    starts = np.flatnonzero(np.diff(changes, prepend=-1))
    stops = np.append(starts[1:], len(changes))
    ranges = zip(starts.tolist(), stops.tolist(), changes[starts].tolist(), strict=True)
    return tuple(ErasedRange(start, stop - 1, change) for start, stop, change in ranges if change)


@dataclass(frozen=True, slots=True)
class LostFiles:
    """A changed unit of which a file is not there: what is erased in it, and the hashes of its part and kept columns.

    `wanted` are the names of the files that it has to have, the part first, and `present` of those that are there.
    """

    unit: int
    erased: Erased
    hash: str
    kept: str
    wanted: list[str]
    present: list[str]


@dataclass(frozen=True, slots=True)
class MakeFiles:
    """The function that makes the lost files of a unit from earlier ones. Returns the names of those it could not."""

    directory: str

    def __call__(self, item: LostFiles) -> list[str]:
        """Publish rows in quarantine and kept columns, then the part."""
        folder, failed = folder_at(self.directory), list[str]()
        for name in (name for name in reversed(item.wanted) if name not in item.present):
            directory = name.split("/", maxsplit=1)[0]
            sources = (source for source in item.present if source.startswith(f"{directory}/"))
            if not any(_MAKERS[directory](folder, item, name, source) for source in sources):
                failed.append(name)
        return failed


def _make_part(folder: Folder, item: LostFiles, name: str, source: str) -> bool:
    with suppress(StoreError):
        summary, content = open_part_file(folder, item.unit, source)
        check_content(folder, summary, content)
        if summary.documents == len(item.erased.changes):
            after, replaced = item.erased.part(summary, content, item.kept)
            if after.file == name and after.blake3 == item.hash:
                with suppress(AlreadyPublishedError):
                    publish_part(folder, after, replaced)
                return True
    return False


def _make_kept(folder: Folder, item: LostFiles, name: str, source: str) -> bool:
    with suppress(StoreError):
        values = nulled(read_kept_file(folder, item.unit, len(item.erased.changes), (), source), item.erased.changes)
        if content_hash(values) == item.kept:
            publish_kept(folder, name, values)
            return True
    return False


def _make_rows(folder: Folder, item: LostFiles, name: str, source: str) -> bool:
    with suppress(StoreError, MalformedDataError):
        entries = quarantine.without_text(quarantine.read_entries(folder, source), item.erased.rows)
        quarantine.publish_entries(folder, name, entries)
        return True
    return False


_MAKERS = {PARTS: _make_part, KEPT: _make_kept, QUARANTINE: _make_rows}
"""How a file of each directory is made from an earlier one."""
