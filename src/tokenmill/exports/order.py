"""The stream of a document and its position in a shuffle. Both follow from a hash of its source and row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.exports.job import ExportJob, Selection
from tokenmill.exports.shards import TRAIN, VAL
from tokenmill.store.held_out import HeldOut
from tokenmill.tokenizers import document_hash


@dataclass(frozen=True, slots=True)
class SplitAndShuffle:
    """The split and the shuffle of an export.

    The split follows from the identity or the split of a source, so it does not change when sources are added or moved.
    The shuffle hashes the number of a source, so equal files get different positions.
    """

    held_out: HeldOut | None
    seed: int | None
    identities: npt.NDArray[np.uint64]
    selection: Selection | None = None

    @classmethod
    def of(cls, job: ExportJob, identities: npt.NDArray[np.uint64], splits: Sequence[str | None]) -> SplitAndShuffle:
        """Return the order of a job for documents from sources with these identities and splits."""
        held_out = HeldOut.of(job.val, identities, splits) if job.val is not None and job.holds_out else None
        return cls(held_out, job.shuffle, identities, job.selection)

    def streams(self, source: npt.NDArray[np.uint32], row: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8] | None:
        """Return the stream of each document, or None if there is only one stream."""
        if self.held_out is None:
            return None
        return np.where(self.held_out.documents(source, row), VAL, TRAIN).astype(np.uint8)

    def selected(self, source: npt.NDArray[np.uint32], row: npt.NDArray[np.uint64]) -> npt.NDArray[np.bool_] | None:
        """Return whether each document is in the export, or None if all are."""
        if self.selection is None:
            return None
        stores = self.selection.stores
        edges = np.cumsum([store.sources for store in stores])
        store = np.searchsorted(edges, source, side="right")
        limits = np.array([store.limit or 0 for store in stores], np.uint64)[store]
        is_whole = np.array([store.limit is None for store in stores])[store]
        keys = document_hash.selection_keys(self.identities, source, row, self.selection.seed)
        taken: npt.NDArray[np.bool_] = is_whole | (keys < limits)
        if self.held_out is None:
            return taken
        is_first = np.array([store.copy == 0 for store in stores])[store]
        return np.where(self.held_out.documents(source, row), is_first, taken)

    def keys(self, source: npt.NDArray[np.uint32], row: npt.NDArray[np.uint64]) -> document_hash.Keys:
        """Return the key of each document. The shuffled corpus is sorted by it."""
        assert self.seed is not None  # noqa: S101 - callers check for a shuffle
        return document_hash.document_keys(self.seed, source, row)
