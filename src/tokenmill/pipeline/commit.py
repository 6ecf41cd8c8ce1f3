"""Publish the part of a unit, and report it. Runs in a worker."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.pipeline.part_builder import BuiltPart, PartBuilder
from tokenmill.storage import AlreadyPublishedError, Folder
from tokenmill.store import layout
from tokenmill.store.part import PartSummary, check_content, open_part, part_name, read_summary
from tokenmill.tokenizers.tokenizer import Tokenizer

REPLACE_ATTEMPTS = 5
"""How often a part is published again that another driver, which does not know of the recheck, published first."""


class Committed(msgspec.Struct, frozen=True):
    """What a worker reports about a committed unit. `found` is set if another driver's part was there already.

    `mismatch` is set if the fast engine has failed an audit in this worker.
    """

    summary: PartSummary
    engine: str
    notices: tuple[str, ...] = ()
    found: bool = False
    mismatch: bool = False


def found(folder: Folder, unit: int, engine: str) -> Committed:
    """Report a part that is there already."""
    return Committed(read_summary(folder, unit), engine, found=True)


def done_names(unit: int, *, recheck: bool) -> list[str]:
    """The files whose existence means that a unit is done."""
    return [part_name(unit), layout.rechecked_name(unit)] if recheck else [part_name(unit)]


@dataclass(slots=True)
class Commit:
    """The function that publishes a part and reports it, or reports the one that another machine published first.

    With `recheck` a part that is there is replaced unless it is equal, and the unit is marked as rechecked.
    """

    folder: Folder
    builder: PartBuilder
    recheck: bool
    engine: str = ""
    notices: tuple[str, ...] = ()
    mismatch: bool = False

    def by(self, tokenizer: Tokenizer) -> Commit:
        """The same, for what this tokenizer encoded. A failed audit is recorded before anything is published."""
        self.engine, self.notices = tokenizer.engine, tokenizer.take_notices()
        if tokenizer.mismatch is not None:
            mismatch = layout.MismatchRecord("gigatoken", tokenizer.mismatch)
            layout.publish_mismatch(self.folder, mismatch)
            self.mismatch = self.recheck = True
        return self

    def __call__(self) -> Committed:
        """Publish the part."""
        part, unit = self.builder.finish(), self.builder.task.unit
        if self.recheck:
            self._replace(part)
            self.folder.sync_directory(layout.PARTS)  # the mark below must not outlive the part in a loss of power
            self.folder.create(layout.RECHECKED)
            self.folder.publish_new(layout.rechecked_name(unit), b"")
        else:
            try:
                part.publish(self.folder)
            except AlreadyPublishedError:
                return found(self.folder, unit, self.engine)
        return Committed(part.summary, self.engine, self.notices, mismatch=self.mismatch)

    def _replace(self, part: BuiltPart) -> None:
        """Have exactly this part in the store, whatever was there."""
        name = part_name(part.summary.unit)
        for _ in range(REPLACE_ATTEMPTS):
            if self.folder.exists(name):
                if is_equal(self.folder, part.summary):
                    return
                layout.withdraw_manifest(self.folder)
                self.folder.discard(name)
            try:
                part.publish(self.folder)
            except AlreadyPublishedError:
                continue
            return
        raise StoreError(f"another process keeps writing {self.folder.path(name)}")


def is_equal(folder: Folder, expected: PartSummary) -> bool:
    """Whether the part of a unit is there, undamaged, and equal to the one with this summary."""
    try:
        summary, content = open_part(folder, expected.unit)
        check_content(folder, summary, content)
    except CorruptStore:
        return False
    return summary == expected
