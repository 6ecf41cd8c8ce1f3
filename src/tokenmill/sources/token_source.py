"""How sources hold documents that are token ids already: in a column of lists, or in the files of a trainer."""

from __future__ import annotations

import msgspec

# What the tokens of a source are divided into: documents, rows that follow each other, rows that overlap by one token.
DOCUMENTS, STREAM, OVERLAP = "documents", "stream", "overlap"

# The type of ids while a source is read. Each document is a binary value of them, little-endian.
ID_TYPE = "<u4"


class TokenInput(msgspec.Struct, frozen=True):
    """Where the ids of documents are in the sources, and which of them belong to the frame of the sources.

    `column` is a column of lists of ids, or `format` is the format of files of tokens, and `dtype` the type of their
    tokens. `begin` and `end` are removed from the begin and the end of each document if they are there.
    """

    column: str = ""
    format: str = ""
    dtype: str = ""
    rows: str = DOCUMENTS
    begin: int | None = None
    end: int | None = None
    # Whether the end token of a file stands before each document.
    end_first: bool = False
