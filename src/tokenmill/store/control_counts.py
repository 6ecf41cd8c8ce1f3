"""How many documents of a store spell a control token: which are searched, and the counts.

The documents that are searched depend on their places in a part only, so the same unit gives the same count.
"""

from __future__ import annotations

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.humanize import Readable

# The first documents of a part are searched, and then every document at a multiple of the step. In large parts the
# search takes less than 1 % of the time of a worker.
SEARCHED_FIRST, SEARCHED_STEP = 32, 128


def searched(first: int, documents: int) -> npt.NDArray[np.int64]:
    """The indices of the documents that are searched, of so many documents from document `first` of a part on."""
    places = np.arange(first, first + documents)
    return np.flatnonzero((places < SEARCHED_FIRST) | (places % SEARCHED_STEP == 0))


def searched_documents(documents: npt.NDArray[np.int64]) -> int:
    """How many documents of parts of these sizes are searched: the first SEARCHED_FIRST, and every SEARCHED_STEP-th."""
    return int((np.minimum(documents, SEARCHED_FIRST) + np.maximum(documents - 1, 0) // SEARCHED_STEP).sum())


class ControlTokens(Readable, msgspec.Struct, frozen=True):
    """How many documents spell a control token, such as `<|im_start|>` or `<think>`, of those that were searched."""

    documents: int
    searched: int

    @classmethod
    def of(cls, manifest: pa.Table) -> ControlTokens:
        """The counts of a store."""
        documents = searched_documents(manifest["documents"].to_numpy())
        return cls(int(np.sum(manifest["spelled"].to_numpy())), documents)

    def plus(self, other: ControlTokens) -> ControlTokens:
        """The counts of two stores."""
        return ControlTokens(self.documents + other.documents, self.searched + other.searched)
