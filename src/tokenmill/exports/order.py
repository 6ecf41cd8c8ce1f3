"""Which stream a document belongs to, and where in a shuffled corpus it comes: both from a hash of where it is from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenmill.exports.job import ExportJob
from tokenmill.exports.shards import TRAIN, VAL
from tokenmill.tokenizers import document_hash

VAL_KEY = 2
"""Under which key the hash of a document decides whether it is held out. A seed would let val move between exports."""


@dataclass(frozen=True, slots=True)
class SplitAndShuffle:
    """The split and the shuffle of an export.

    The split hashes a source's identity, so it stays when sources are added or moved. The shuffle hashes the source's
    number, so that equal files are shuffled apart.
    """

    val_fraction: float | None
    seed: int | None
    identities: npt.NDArray[np.uint64]

    @classmethod
    def of(cls, job: ExportJob, identities: npt.NDArray[np.uint64]) -> SplitAndShuffle:
        """The order that a job asks for, of documents from sources with these identities."""
        return cls(job.val_fraction, job.shuffle, identities)

    def streams(self, source: npt.NDArray[np.uint32], row: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8] | None:
        """The stream of each document, or None if there is only one."""
        if self.val_fraction is None:
            return None
        hashes = document_hash.document_keys(VAL_KEY, self.identities[source], row)
        return np.where(document_hash.in_sample(hashes, self.val_fraction), VAL, TRAIN).astype(np.uint8)

    def keys(self, source: npt.NDArray[np.uint32], row: npt.NDArray[np.uint64]) -> document_hash.Keys:
        """The key of each document; the shuffled corpus is sorted by it."""
        assert self.seed is not None  # noqa: S101 - only asked for when there is a shuffle
        return document_hash.document_keys(self.seed, source, row)
