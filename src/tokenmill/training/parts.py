"""The parts of a store as a loader reads them: mapped from a disk, or by ranges from an object store.

A training goes on while documents are erased. At most once a second, when a batch is fetched, the loader looks for
claims. It gives end tokens for the documents that they name, also while the erasure is under way, and finds parts under
their new names.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt

from tokenmill.errors import StorageError, StoreError
from tokenmill.spans import Spans
from tokenmill.storage import io_threads
from tokenmill.store import layout
from tokenmill.store.chain import StoreVersion, claimed_documents, last_change, read_head, require_version
from tokenmill.store.manifest import is_listed
from tokenmill.store.member import Member
from tokenmill.store.part import PartContent, TokenArray, erased_changes
from tokenmill.store.part_index import MAX_MAPPED_PARTS
from tokenmill.store.part_ranges import RangedPart, open_ranged
from tokenmill.store.reader import Store
from tokenmill.training.order import Numbers

# Parts of an object store whose headers, and perhaps the positions of their documents, stay in memory.
MAX_RANGED_PARTS = 1024

# Claims are looked for when the last look is so old. An object store is asked in the background before that.
LOOK_SECONDS = 1.0
ASK_SECONDS = 0.5

Value = TypeVar("Value")


class LoaderParts:
    """The columns of a store's parts. Each part is compared with the manifest when it is opened."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._opened = self._newest = store.collection.members[0]
        self.folder = self._opened.folder
        self._looked = self._asked = time.monotonic()
        self._answer: Future[int] | None = None
        self._later: dict[int, Numbers] = {}  # the documents of parts that were erased since the store was opened
        self._part = functools.lru_cache(MAX_RANGED_PARTS if self.folder.is_remote else MAX_MAPPED_PARTS)(self._open)

    @property
    def version(self) -> StoreVersion:
        """The version of the store whose erased documents are not given out."""
        return self._newest.head.version

    @property
    def has_erased(self) -> bool:
        """Whether documents were erased."""
        return self._newest.head.number > 0

    def look(self) -> None:
        """Look for claims, unless that was done within a second."""
        now = time.monotonic()
        age = now - self._looked
        if age >= LOOK_SECONDS:
            self._answer, self._looked = None, now
            self._follow(last_change(self.folder))
        elif self.folder.is_remote and age >= ASK_SECONDS:
            if self._answer is None:
                self._answer, self._asked = io_threads().submit(last_change, self.folder), now
            if self._answer.done():
                self._follow(self._answer.result())
                self._answer, self._looked = None, self._asked

    def require(self, version: StoreVersion) -> None:
        """Raise CorruptStore if the store does not have a version that a state names."""
        self._follow(last_change(self.folder))
        require_version(self.folder, self._newest.head, version)

    def tokens(self, part: int, start: int, stop: int) -> TokenArray:
        """Tokens [start, stop) of a part: a view on a disk, one request in an object store."""
        opened = self._part(part)
        if isinstance(opened, PartContent):
            return opened.tokens[start:stop]
        return self._read(part, lambda one: cast("RangedPart", one).read_tokens(start, stop))

    def offsets(self, part: int) -> Numbers:
        """The position of each document of a part, and the number of tokens."""
        return self._read(part, lambda opened: opened.offsets)

    def origins(self, part: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
        """The source and the row of each document of a part."""
        return self._read(part, lambda opened: (opened.source, opened.row))

    def train(self, part: int) -> Spans | None:
        """The tokens of each document of a part that are trained on; None if all are."""
        return self._read(part, lambda opened: opened.train)

    def erased(self, part: int) -> Numbers | None:
        """A number that is not 0 for each erased document of a part; None if none is erased."""
        erased = self._read(part, _erased)
        if part not in self._later:
            return erased
        marks = np.zeros(len(self.offsets(part)) - 1, np.int64) if erased is None else erased.copy()
        marks[self._later[part]] = self._newest.head.number
        return marks

    def matching(self, part: int, where: str) -> npt.NDArray[np.bool_]:
        """Whether the kept columns of each document of a part satisfy a condition. Those of erased ones do not."""
        matches = self._either(lambda member: member.matching(part, where))
        erased = self.erased(part)
        return matches if erased is None else np.logical_and(matches, erased == 0)

    def _read(self, part: int, read: Callable[[PartContent | RangedPart], Value]) -> Value:
        """Read from a part. If an erasure removed the object meanwhile, the part is opened again."""
        try:
            return read(self._part(part))
        except (StoreError, StorageError):
            self._part.cache_clear()
            return read(self._part(part))

    def _open(self, part: int) -> PartContent | RangedPart:
        open_ = _open_ranged if self.folder.is_remote else Member.open_part
        return self._either(lambda member: open_(member, part))

    def _either(self, read: Callable[[Member], Value]) -> Value:
        """Read a file by the name that it had when the store was opened, or by its last one.

        An erasure makes the new file before it removes the old one.
        """
        while True:
            known = self._newest
            try:
                return read(self._opened)
            except StoreError:
                if known is not self._opened:
                    with contextlib.suppress(StoreError):
                        return read(known)
                self._follow(last_change(self.folder))
                if self._newest is known:
                    raise

    def _follow(self, last: int) -> None:
        """Follow the store to a later change."""
        if last <= self._newest.head.number:
            return
        head = read_head(self.folder, number=last)
        claimed = claimed_documents(self.folder, head, after=self._opened.head.number)
        unit, document = (claimed[name].to_numpy() for name in ("unit", "document"))
        order = np.argsort(unit, kind="stable")
        units, starts = np.unique(unit[order], return_index=True)
        self._later = dict(zip(units.tolist(), np.split(document[order], starts)[1:], strict=True))
        self._newest = dataclasses.replace(self._newest, head=head, manifest=head.manifest(self._newest.manifest))


def _erased(opened: PartContent | RangedPart) -> Numbers | None:
    return erased_changes(opened.summary) if isinstance(opened, RangedPart) else opened.erased


def _open_ranged(member: Member, part: int) -> RangedPart:
    opened = open_ranged(member.folder, part, member.head)
    if str(opened.dtype) != member.run.job.tokenizer.dtype or not is_listed(member.manifest, opened.summary):
        raise layout.damaged(
            member.folder, member.head.part_file(part), "it is not the part that the manifest describes"
        )
    return opened
