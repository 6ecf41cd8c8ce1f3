"""Find the part that holds a document or a token of complete stores, and keep the latest parts open."""

from __future__ import annotations

import functools

import numpy as np

from tokenmill.store.collection import Collection
from tokenmill.store.part import TokenArray

# The maximum number of parts that are open at a time.
OPEN_PARTS = 64


class PartIndex:
    """The parts of a collection of stores, by the documents and tokens that come before each."""

    def __init__(self, collection: Collection) -> None:
        self._document_ends = np.cumsum(collection.manifest["documents"].to_numpy())
        self._token_ends = np.cumsum(collection.manifest["tokens"].to_numpy())
        self.open = functools.lru_cache(maxsize=OPEN_PARTS)(collection.open_part)

    @property
    def documents(self) -> int:
        """The number of documents in all parts."""
        return int(self._document_ends[-1]) if len(self._document_ends) else 0

    @property
    def tokens(self) -> int:
        """The number of tokens in all parts."""
        return int(self._token_ends[-1]) if len(self._token_ends) else 0

    def find_document(self, position: int) -> tuple[int, int]:
        """The part that holds a document, and the index of the document in it. Negative positions count from the end.

        Raises IndexError if the store has no such document.
        """
        count = self.documents
        if not -count <= position < count:
            held = f"{count:,} documents, from 0 to {count - 1:,}" if count else "no documents"
            raise IndexError(f"document {position:,} is out of range: the store has {held}")
        position %= count
        part = int(np.searchsorted(self._document_ends, position, side="right"))
        return part, position - self.documents_before(part)

    def find_token(self, token: int) -> int:
        """The part that holds a token of the whole stream. Raises IndexError if the store has no such token."""
        count = self.tokens
        if not 0 <= token < count:
            held = f"{count:,} tokens, from 0 to {count - 1:,}" if count else "no tokens"
            raise IndexError(f"token {token:,} is out of range: the store has {held}")
        return int(np.searchsorted(self._token_ends, token, side="right"))

    def documents_before(self, part: int) -> int:
        """The number of documents in the parts before this one."""
        return int(self._document_ends[part - 1]) if part else 0

    def tokens_before(self, part: int) -> int:
        """The number of tokens in the parts before this one."""
        return int(self._token_ends[part - 1]) if part else 0

    def tokens_between(self, part: int, start: int, stop: int) -> TokenArray:
        """Those of the tokens [start, stop) of the whole stream that this part holds: a view."""
        before = self.tokens_before(part)
        return self.open(part).tokens[max(start - before, 0) : stop - before]
