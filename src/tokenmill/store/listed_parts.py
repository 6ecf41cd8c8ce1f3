"""Open parts of complete stores in a worker, and compare each with its checksum in the manifest of its store."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore
from tokenmill.sources import splits_of
from tokenmill.storage import Folder, folder_at
from tokenmill.store import layout, tables
from tokenmill.store.chain import Head, StoreVersion, head_at
from tokenmill.store.job import require_run
from tokenmill.store.kept import matching, read_kept
from tokenmill.store.part import PartContent, PartSummary, check_content, check_fits, open_part
from tokenmill.store.tables import read_checksums

# The paths, the identities and the splits of sources.
SourceColumns = tuple[pa.Array, npt.NDArray[np.uint64], list[str | None]]

# Stores whose checksums a worker keeps in memory.
KEPT_CHECKSUMS = 4


@functools.lru_cache(maxsize=KEPT_CHECKSUMS)
def _checksums(directory: str, version: StoreVersion, store: str) -> pa.ChunkedArray:
    """The checksums of the parts at a version. The digest is part of the cache key: a store may be another."""
    folder = folder_at(directory)
    checksums = head_at(directory, version).manifest(read_checksums(folder, require_run(folder)))
    if tables.parts_digest(checksums) != store:
        raise CorruptStore(f"{folder.root} changed while it was being read", "Run the same command again.")
    return checksums["blake3"]


def with_source_offset(content: PartContent, offset: int) -> PartContent:
    """A part whose sources are numbered from `offset` on, as in a collection of stores."""
    return replace(content, source=content.source + np.uint32(offset)) if offset else content


@dataclass(frozen=True, slots=True)
class ListedStore:
    """A complete store as its manifest lists it at a version. `digest` is the digest of the parts then.

    The documents that the first `left_out` changes of the store erased are not in the content of its parts, and with
    `where` only those are whose kept columns satisfy it. `kept_columns` are the names of all kept columns.
    """

    directory: str
    digest: str
    version: StoreVersion
    parts: int
    sources: int
    sources_blake3: str
    left_out: int = 0
    where: str | None = None
    kept_columns: tuple[str, ...] = ()

    @property
    def head(self) -> Head:
        """The head of the store."""
        return head_at(self.directory, self.version)

    def open(self, unit: int, dtype: str, *, content_too: bool) -> tuple[PartSummary, PartContent]:
        """Open the part of a unit. Raises CorruptStore if it is not the part that the manifest lists."""
        folder = folder_at(self.directory)
        summary, content = self._open(unit, dtype)
        if content_too:
            check_content(folder, summary, content)
        selected = self._selected(summary, content)
        return summary, content if selected is None else content.select(selected)

    def kept(self, unit: int, dtype: str) -> tuple[int, pa.Table | None]:
        """The number of documents in the content of a part, and their kept columns; None if the store keeps none."""
        summary, content = self._open(unit, dtype)
        selected = self._selected(summary, content)
        documents = len(content.row) if selected is None else int(selected.sum())
        if not self.kept_columns:
            return documents, None
        values = read_kept(folder_at(self.directory), summary, self.kept_columns, self.head)
        return documents, values if selected is None else values.filter(pa.array(selected))

    def _open(self, unit: int, dtype: str) -> tuple[PartSummary, PartContent]:
        folder = folder_at(self.directory)
        summary, content = open_part(folder, unit, self.head)
        if summary.blake3 != _checksums(self.directory, self.version, self.digest)[unit].as_py():
            raise layout.damaged(folder, self.head.part_file(unit), "it is not the part that the manifest describes")
        check_fits(folder, summary, content, dtype, self.sources)
        return summary, content

    def _selected(self, summary: PartSummary, content: PartContent) -> npt.NDArray[np.bool_] | None:
        """Which documents of a part are in its content; None if all are."""
        erased = content.erased
        if self.where is not None:
            matches = matching(folder_at(self.directory), summary, self.where, self.head)
            return matches if erased is None else matches & (erased == 0)  # an erased document has no values
        selected = None if erased is None else (erased == 0) | (erased > self.left_out)
        return None if selected is None or selected.all() else selected


@dataclass(frozen=True, slots=True)
class ListedParts:
    """The parts of one or several complete stores. Parts and sources are numbered through all stores."""

    stores: tuple[ListedStore, ...]
    dtype: str

    @property
    def name(self) -> str:
        """The directories of the stores in one line, for messages."""
        return ", ".join(store.directory for store in self.stores)

    @property
    def directories(self) -> list[str]:
        """The directories of the stores, each once."""
        return list(dict.fromkeys(store.directory for store in self.stores))

    @property
    def folder(self) -> Folder:
        """The folder that decides whether parts are prefetched: a remote one, if any store is remote."""
        folders = [folder_at(store.directory) for store in self.stores]
        return next((folder for folder in folders if folder.is_remote), folders[0])

    def open(self, part: int, *, content_too: bool) -> tuple[PartSummary, PartContent]:
        """Open a part. Its summary has the numbers of its own store, its content those of the collection.

        With `content_too` the columns are hashed and compared, too.
        """
        store, unit, first_source = self._find(part)
        summary, content = store.open(unit, self.dtype, content_too=content_too)
        return summary, with_source_offset(content, first_source)

    def kept(self, part: int) -> tuple[int, pa.Table | None]:
        """The number of documents in the content of a part, and their kept columns; None if its store keeps none."""
        store, unit, _ = self._find(part)
        return store.kept(unit, self.dtype)

    def _find(self, part: int) -> tuple[ListedStore, int, int]:
        """The store that holds a part, the unit of the part in it, and the number of the store's first source."""
        first_source = 0
        for store in self.stores:
            if part < store.parts:
                return store, part, first_source
            part -= store.parts
            first_source += store.sources
        raise IndexError(f"there is no part {part} after the last store")

    def source_columns(self) -> SourceColumns:
        """The paths, the identities and the splits of all sources."""
        return _source_columns(self.stores)


@functools.lru_cache(maxsize=1)
def _source_columns(stores: tuple[ListedStore, ...]) -> SourceColumns:
    """The columns of the sources. The hashes in `stores` are cache keys: a store may change."""
    paths, identities = [], []
    splits: list[str | None] = []
    for store in stores:
        folder = folder_at(store.directory)
        table = tables.read_sources(folder, require_run(folder))
        paths.append(table["path"].combine_chunks())
        identities.append(table["identity"].to_numpy())
        splits += splits_of(table)
    return (paths[0] if len(paths) == 1 else pa.concat_arrays(paths)), np.concatenate(identities), splits
