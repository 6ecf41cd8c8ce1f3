"""Open parts of a complete store, and compare each with its checksum in the manifest."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tokenmill.errors import CorruptStore
from tokenmill.storage import folder_at
from tokenmill.store import layout, tables
from tokenmill.store.job import Run
from tokenmill.store.part import PartContent, PartSummary, check_content, check_fits, open_part, part_name
from tokenmill.store.run import require_run

if TYPE_CHECKING:
    from tokenmill.storage import Folder


def store_digest(manifest: pa.Table) -> str:
    """The identity of a store's content: the hash of the checksums of its parts."""
    digest = hashlib.sha256()
    for checksums in manifest["sha256"].chunks:
        if len(checksums):  # the texts are one after the other in memory: millions are hashed at once
            _, offsets, texts = checksums.buffers()
            edges = np.frombuffer(offsets, np.int32)[checksums.offset : checksums.offset + len(checksums) + 1]
            digest.update(memoryview(texts)[edges[0] : edges[-1]])
    return digest.hexdigest()


@functools.lru_cache(maxsize=1)
def _checksums(directory: str, store: str) -> pa.ChunkedArray:
    """The checksums of the parts, in order. The digest is part of the cache key, so a changed store is read again."""
    folder = folder_at(directory)
    checksums = tables.read_checksums(folder, require_run(folder))
    if store_digest(checksums) != store:
        raise CorruptStore(f"{folder.root} changed while it was being read", "Run the same command again.")
    return checksums["sha256"]


@dataclass(frozen=True, slots=True)
class ListedParts:
    """The parts of a complete store as its manifest lists them. `store` is the digest of that manifest."""

    directory: str
    store: str
    dtype: str
    sources: int

    @classmethod
    def of(cls, folder: Folder, run: Run, manifest: pa.Table) -> ListedParts:
        """The parts that a manifest lists."""
        return cls(folder.root, store_digest(manifest), run.job.tokenizer.dtype, run.sources)

    def open(self, unit: int, *, content_too: bool) -> tuple[PartSummary, PartContent]:
        """Open the part of a unit. Raises CorruptStore if it is not the part that the manifest lists.

        With `content_too` the columns are hashed and compared, too.
        """
        folder = folder_at(self.directory)
        summary, content = open_part(folder, unit)
        if summary.sha256 != _checksums(self.directory, self.store)[unit].as_py():
            raise layout.damaged(folder, part_name(unit), "it is not the part that the manifest describes")
        check_fits(folder, unit, content, self.dtype, self.sources)
        if content_too:
            check_content(folder, summary, content)
        return summary, content
