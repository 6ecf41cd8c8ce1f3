"""Reads the summaries of parts and finds those that do not belong to their unit. Runs in a worker."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import msgspec

from tokenmill.errors import CorruptStore
from tokenmill.storage import Folder, folder_at, prefetch_map
from tokenmill.store.chain import FIRST, Head, StoreVersion, head_at
from tokenmill.store.job import Job
from tokenmill.store.kept import read_kept
from tokenmill.store.part import PartSummary, check_part, read_summary

# How many headers of parts are fetched ahead from a remote store.
PREFETCH_HEADERS = 32

# Stands for a digest in the items of CheckParts, if the slice of a part is not known.
ANY_SLICE = ""


class InvalidPart(msgspec.Struct, frozen=True):
    """A part that is damaged, or made from another slice or job than its unit."""

    unit: int
    reason: str


@dataclass(frozen=True, slots=True)
class CheckParts:
    """The function that reads the summaries of parts, and finds those that do not belong to their unit.

    Its items are units with the digests of their slices. With `content_too` each part is read whole and hashed.
    `version` is that of the store.
    """

    directory: str
    job: Job
    version: StoreVersion = FIRST
    content_too: bool = False

    def __call__(self, parts: tuple[tuple[int, str], ...]) -> list[PartSummary | InvalidPart]:
        """For each part, in order, its summary or what is wrong with it."""
        folder = folder_at(self.directory)
        return list(prefetch_map(folder, partial(self._check, folder, self.job.digest()), parts, PREFETCH_HEADERS))

    @property
    def _head(self) -> Head:
        return head_at(self.directory, self.version)

    def _kept_problem(self, folder: Folder, summary: PartSummary) -> str | None:
        """What is wrong with the kept columns of a part, if it has any."""
        if not summary.kept:
            return None
        if not folder.exists(self._head.kept_file(summary.unit)):
            return "its kept columns are missing"
        if self.content_too:
            try:
                read_kept(folder, summary, self.job.keep, self._head)
            except CorruptStore as error:
                return error.headline
        return None

    def _check(self, folder: Folder, job: str, part: tuple[int, str]) -> PartSummary | InvalidPart:
        unit, slice_digest = part
        try:
            if self.content_too:
                summary = check_part(folder, unit, self.job, self._head)
            else:
                summary = read_summary(folder, unit, self._head)
        except CorruptStore as error:
            return InvalidPart(unit, next((line for line in error.details if line.startswith("found")), error.headline))
        if summary.job != job:
            return InvalidPart(unit, "it belongs to another job")
        if (reason := self._kept_problem(folder, summary)) is not None:
            return InvalidPart(unit, reason)
        if slice_digest not in (summary.slice, ANY_SLICE):
            return InvalidPart(unit, "it was made from another slice of the sources")
        return summary
