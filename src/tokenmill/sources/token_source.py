"""How sources hold documents that are token ids already: in a column of lists, or in the files of a trainer."""

from __future__ import annotations

import msgspec

# What the tokens of a source are divided into: documents, rows that follow each other, rows that overlap by one token.
DOCUMENTS, STREAM, OVERLAP = "documents", "stream", "overlap"

# The type of ids while a source is read. Each document is a binary value of them, little-endian. Those of a store keep
# the type that they have there.
ID_TYPE = "<u4"
# A token of the frame that is not given: it is looked for in a sample.
TO_BE_FOUND = -1


class StoreInput(msgspec.Struct, frozen=True):
    """The store whose units are read in place of the files that it was made from, after so many changes of it.

    `digest` is that of its parts then, and `claim` the hash of its last claim. `units`, `sources` and `bad`, the
    rows in its quarantine, are counts. `keep` are its kept columns.
    """

    directory: str
    digest: str
    changes: int
    claim: str
    units: int
    sources: int
    bad: int
    keep: tuple[str, ...] = ()
    has_spans: bool = False
    splits_rows: bool = False


class TokenInput(msgspec.Struct, frozen=True):
    """Where the ids of documents are in the sources, and which of them belong to the frame of the sources.

    `column` is a column of lists of ids, or `format` is the format of files of tokens, and `dtype` the type of their
    tokens, or they are in a store. `begin` and `end` are removed from the begin and the end of each document if they
    are there.
    """

    column: str = ""
    format: str = ""
    dtype: str = ""
    rows: str = DOCUMENTS
    begin: int | None = None
    end: int | None = None
    # Whether the end token of a file stands before each document.
    end_first: bool = False
    # The tokens of a row of a file, if its rows are documents or overlap.
    row_tokens: int = 0
    store: StoreInput | None = None
