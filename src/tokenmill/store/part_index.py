"""Find the part that holds a document or a token of complete stores, and keep parts open."""

from __future__ import annotations

import functools
from array import array
from bisect import bisect_right

import numpy as np
import numpy.typing as npt

from tokenmill.store.collection import Collection
from tokenmill.store.part import TokenArray

# Parts of a disk that stay mapped. A mapped part takes address space, a few kilobytes of memory and no file descriptor;
# Linux allows a process 65,530 mappings.
MAX_MAPPED_PARTS = 1 << 15

# Parts of an object store that stay in memory.
MAX_FETCHED_PARTS = 64


def running_sums(counts: npt.NDArray[np.int64]) -> array[int]:
    """The sum of the counts up to each one, to be bisected.

    Bisecting an array of the standard library takes a fifth of the time of `searchsorted` for one position. A list
    would be as fast, but a list of a million parts takes a tenth of a second to make.
    """
    return array("q", np.cumsum(counts, dtype=np.int64).tobytes())


class PartIndex:
    """The parts of a collection of stores, by the documents and tokens that come before each."""

    def __init__(self, collection: Collection) -> None:
        self._document_ends = running_sums(collection.manifest["documents"].to_numpy())
        self._token_ends = running_sums(collection.manifest["tokens"].to_numpy())
        is_remote = any(member.folder.is_remote for member in collection.members)
        self.open = functools.lru_cache(MAX_FETCHED_PARTS if is_remote else MAX_MAPPED_PARTS)(collection.open_part)

    @property
    def documents(self) -> int:
        """The number of documents in all parts."""
        return self._document_ends[-1] if self._document_ends else 0

    @property
    def tokens(self) -> int:
        """The number of tokens in all parts."""
        return self._token_ends[-1] if self._token_ends else 0

    def find_document(self, position: int) -> tuple[int, int]:
        """The part that holds a document, and the index of the document in it. Negative positions count from the end.

        Raises IndexError if the store has no such document.
        """
        count = self.documents
        if not -count <= position < count:
            held = f"{count:,} documents, from 0 to {count - 1:,}" if count else "no documents"
            raise IndexError(f"document {position:,} is out of range: the store has {held}")
        position %= count
        part = bisect_right(self._document_ends, position)
        return part, position - self.documents_before(part)

    def find_token(self, token: int) -> int:
        """The part that holds a token of the whole stream. Raises IndexError if the store has no such token."""
        count = self.tokens
        if not 0 <= token < count:
            held = f"{count:,} tokens, from 0 to {count - 1:,}" if count else "no tokens"
            raise IndexError(f"token {token:,} is out of range: the store has {held}")
        return bisect_right(self._token_ends, token)

    def documents_before(self, part: int) -> int:
        """The number of documents in the parts before this one."""
        return self._document_ends[part - 1] if part else 0

    def tokens_before(self, part: int) -> int:
        """The number of tokens in the parts before this one."""
        return self._token_ends[part - 1] if part else 0

    def read(self, start: int, stop: int) -> TokenArray:
        """Tokens [start, stop) of the whole stream, at least one: a view if they are in one part, else a copy."""
        part = bisect_right(self._token_ends, start)
        before = self._token_ends[part - 1] if part else 0
        if stop <= self._token_ends[part]:
            return self.open(part).tokens[start - before : stop - before]
        arrays = []
        while before < stop:
            arrays.append(self.open(part).tokens[max(start - before, 0) : stop - before])
            before, part = self._token_ends[part], part + 1
        return np.concatenate(arrays)
