"""Publishes the part of a unit, and reports it. Runs in a worker."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
import pyarrow as pa

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.pipeline.unit.part_builder import BuiltPart, PartBuilder
from tokenmill.storage import AlreadyPublishedError, Folder
from tokenmill.store import layout
from tokenmill.store.layout import part_name
from tokenmill.store.part import PartSummary, check_content, open_part, read_summary
from tokenmill.store.state import MismatchRecord, mark_rechecked, publish_mismatch, rechecked_name
from tokenmill.tokenization.tokenizer import Tokenizer

# How often a recheck replaces a part that a driver without the recheck keeps publishing first.
REPLACE_ATTEMPTS = 5


class Committed(msgspec.Struct, frozen=True):
    """What a worker reports about a committed unit.

    `by_other_driver` is set if another driver has published the part. `mismatch` is set if the fast engine has failed
    an audit in this worker. `companions` are the parts of other stores, in the order of `Tokenize.companions`; None
    stands for a part that was not made. `unread_groups` counts the Parquet row groups that a filter skipped.
    """

    summary: PartSummary
    engine: str
    notices: tuple[str, ...] = ()
    by_other_driver: bool = False
    mismatch: bool = False
    companions: tuple[Committed | None, ...] = ()
    unread_groups: int = 0


def report_existing(folder: Folder, unit: int, engine: str) -> Committed:
    """Report a part that another driver has published."""
    return Committed(read_summary(folder, unit), engine, by_other_driver=True)


def done_names(unit: int, *, recheck: bool) -> list[str]:
    """The files whose existence means that a unit is done."""
    return [part_name(unit), rechecked_name(unit)] if recheck else [part_name(unit)]


@dataclass(slots=True)
class Commit:
    """The function that publishes a part and reports it, or reports the one that another driver published first.

    With `recheck` an existing part is replaced unless it is equal, and the unit is marked as rechecked. `kept` are the
    columns that are published with the part.
    """

    folder: Folder
    builder: PartBuilder
    recheck: bool
    kept: pa.Table | None = None
    engine: str = ""
    notices: tuple[str, ...] = ()
    mismatch: bool = False

    def by(self, tokenizer: Tokenizer) -> Commit:
        """Report this tokenizer's engine and notices. A failed audit is recorded before anything is published."""
        self.engine, self.notices = tokenizer.engine, tokenizer.take_notices()
        if tokenizer.mismatch is not None:
            mismatch = MismatchRecord("gigatoken", tokenizer.mismatch)
            publish_mismatch(self.folder, mismatch)
            self.mismatch = self.recheck = True
        return self

    def __call__(self) -> Committed:
        """Publish the part."""
        part, unit = self.builder.finish(self.kept), self.builder.task.unit
        if self.recheck:
            self._replace(part)
            self.folder.sync_directory(layout.PARTS)  # the mark below must not outlive the part in a power cut
            mark_rechecked(self.folder, unit, part.summary.blake3)
        else:
            try:
                part.publish(self.folder)
            except AlreadyPublishedError:
                return report_existing(self.folder, unit, self.engine)
        unread = self.builder.unread_groups
        return Committed(part.summary, self.engine, self.notices, mismatch=self.mismatch, unread_groups=unread)

    def _replace(self, part: BuiltPart) -> None:
        """Publish this part in place of any other part of its unit."""
        name = part_name(part.summary.unit)
        for _ in range(REPLACE_ATTEMPTS):
            if self.folder.exists(name):
                if is_equal(self.folder, part.summary):
                    return
                layout.remove_manifest(self.folder)
                self.folder.discard(name)
            try:
                part.publish(self.folder)
            except AlreadyPublishedError:
                continue
            return
        raise StoreError(f"another process keeps writing {self.folder.path(name)}")


def is_equal(folder: Folder, expected: PartSummary) -> bool:
    """Whether the store has an undamaged part that is equal to the one with this summary."""
    try:
        summary, content = open_part(folder, expected.unit)
        check_content(folder, summary, content)
    except CorruptStore:
        return False
    return summary == expected
