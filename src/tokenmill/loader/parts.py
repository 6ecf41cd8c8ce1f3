"""The parts of a store as a loader reads them: mapped from a disk, or by ranges from an object store."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from tokenmill.loader.order import Numbers
from tokenmill.store import layout
from tokenmill.store.manifest import is_listed
from tokenmill.store.part import TokenArray, erased_changes, part_name
from tokenmill.store.part_ranges import RangedPart, open_ranged
from tokenmill.store.reader import Store

# Parts of an object store whose headers, and perhaps the positions of their documents, stay in memory.
MAX_RANGED_PARTS = 1024


class LoaderParts:
    """The columns of a store's parts. Each part is compared with the manifest when it is opened."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.folder = store.collection.members[0].folder
        self._ranged = functools.lru_cache(MAX_RANGED_PARTS)(self._open_ranged)

    def tokens(self, part: int, start: int, stop: int) -> TokenArray:
        """Tokens [start, stop) of a part: a view on a disk, one request in an object store."""
        if self.folder.is_remote:
            return self._ranged(part).read_tokens(start, stop)
        return self.store.part(part).tokens[start:stop]

    def offsets(self, part: int) -> Numbers:
        """The position of each document of a part, and the number of tokens."""
        return self._ranged(part).offsets if self.folder.is_remote else self.store.part(part).offsets

    def origins(self, part: int) -> tuple[npt.NDArray[np.uint32], npt.NDArray[np.uint64]]:
        """The source and the row of each document of a part."""
        opened = self._ranged(part) if self.folder.is_remote else self.store.part(part)
        return opened.source, opened.row

    def erased(self, part: int) -> Numbers | None:
        """The number of the change that erased each document of a part, or 0; None if none is erased."""
        if self.folder.is_remote:
            return erased_changes(self._ranged(part).summary)
        return self.store.part(part).erased

    def matching(self, part: int, where: str) -> npt.NDArray[np.bool_]:
        """Whether the kept columns of each document of a part satisfy a condition. Those of erased ones do not."""
        matches = self.store.collection.members[0].matching(part, where)
        erased = self.erased(part)
        return matches if erased is None else np.logical_and(matches, erased == 0)

    def _open_ranged(self, part: int) -> RangedPart:
        opened = open_ranged(self.folder, part)
        if opened.dtype != self.store.dtype or not is_listed(self.store.manifest, opened.summary):
            raise layout.damaged(self.folder, part_name(part), "it is not the part that the manifest describes")
        return opened
