"""The documents of an export that were erased from its stores, and the shards that may hold them."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.exports.documents import DocumentTable
from tokenmill.exports.job import FrozenExport
from tokenmill.exports.order import SplitAndShuffle
from tokenmill.exports.shards import Counts
from tokenmill.storage import folder_at
from tokenmill.store.chain import StoreVersion, claimed_documents, read_head

_PAIR = np.dtype([("source", "<u4"), ("row", "<u8")])


@dataclass(frozen=True, slots=True)
class ErasedDocuments:
    """The documents that were erased from the stores of an export until some versions. It names them for workers.

    `directories` and `versions` are those of the stores, `first_sources` and `first_parts` the numbers of their first
    source and part in the export.
    """

    directories: tuple[str, ...]
    versions: tuple[StoreVersion, ...]
    first_sources: tuple[int, ...]
    first_parts: tuple[int, ...]

    @classmethod
    def of(cls, frozen: FrozenExport, directories: list[str], versions: tuple[StoreVersion, ...]) -> ErasedDocuments:
        """The documents that were erased from the stores, which are in these directories."""
        sources, parts = (
            tuple(np.cumsum([0, *(getattr(store, name) for store in frozen.stores)])[:-1].tolist())
            for name in ("sources", "parts")
        )
        return cls(tuple(directories), versions, sources, parts)

    def among(self, documents: DocumentTable) -> Counts:
        """The indices of erased documents in a table."""
        erased, _ = _erased(self)
        near = np.flatnonzero(np.isin(documents.source, erased["source"]) & np.isin(documents.row, erased["row"]))
        found = np.empty(len(near), _PAIR)
        found["source"], found["row"] = documents.source[near], documents.row[near]
        indices: Counts = near[np.isin(found, erased)]
        return indices

    def blocks(self, frozen: FrozenExport) -> Counts:
        """The blocks of the export that hold erased documents, in order: parts, or ranges of keys of a shuffle."""
        erased, parts = _erased(self)
        if frozen.job.shuffle is None:
            return np.unique(parts)
        order = SplitAndShuffle.of(frozen.job, np.empty(0, np.uint64), [])
        keys = order.keys(np.ascontiguousarray(erased["source"]), np.ascontiguousarray(erased["row"]))
        return np.unique((keys >> np.uint64(65 - frozen.bins.bit_length())).astype(np.int64))


@functools.lru_cache(maxsize=2)
def _erased(documents: ErasedDocuments) -> tuple[npt.NDArray[np.void], Counts]:
    """The source and the row of each erased document, and its part, by the numbers of the export."""
    pairs, parts = [np.empty(0, _PAIR)], [np.empty(0, np.int64)]
    stores = zip(documents.directories, documents.versions, documents.first_sources, documents.first_parts, strict=True)
    for directory, version, first_source, first_part in stores:
        folder = folder_at(directory)
        table = claimed_documents(folder, read_head(folder, number=version.number))
        pair = np.empty(len(table), _PAIR)
        pair["source"], pair["row"] = table["source"].to_numpy() + np.uint32(first_source), table["row"].to_numpy()
        pairs.append(pair)
        parts.append(table["unit"].to_numpy() + first_part)
    return np.concatenate(pairs), np.concatenate(parts)
