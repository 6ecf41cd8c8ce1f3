"""The error tree.

TokenmillError                something tokenmill can explain; everything it raises on purpose
├── UsageError                the call itself is wrong: exit code 2
├── SourceError               a source cannot be found or read
│   └── BadDocument           one document of a source cannot be used (file and row are known)
├── TokenizerError            a tokenizer cannot be found, read or used
│   └── EngineMismatch        the fast engine disagreed with the reference on a document
├── StoreError                a store cannot be written or read
│   ├── JobChanged            the directory belongs to another job
│   ├── IncompleteStore       some units have not been committed yet
│   └── CorruptStore          bytes are not what their checksum says: exit code 3
├── StorageError              an object store or the Hub does not answer, or does not let us in
├── MemoryShortage            a document needs more memory than the budget has
└── RunFailed                 units failed or the run was given up

A message is a first sentence that says what is wrong, then indented lines: where, what was expected, what was
found, what to do.
"""

from __future__ import annotations

INTERRUPTED = 130
"""The exit code of a command that somebody interrupted."""


class TokenmillError(Exception):
    """An error with a message made for people: a headline and indented details."""

    exit_code = 1

    def __init__(self, headline: str, *details: str) -> None:
        super().__init__(headline, *details)
        self.headline = headline
        self.details = details

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"  {line}" for line in self.details)])


class UsageError(TokenmillError):
    """The call is wrong; nothing was done."""

    exit_code = 2


class SourceError(TokenmillError):
    """A source cannot be found or read."""


class BadDocument(SourceError):
    """One document cannot be used; the message names its file and row."""


class TokenizerError(TokenmillError):
    """A tokenizer cannot be found, read or used."""


class EngineMismatch(TokenizerError):
    """The fast engine and the reference gave different tokens for one document."""


class StoreError(TokenmillError):
    """A store cannot be written or read."""


class JobChanged(StoreError):
    """The directory holds a run of another job, tokenizer or set of sources."""


class IncompleteStore(StoreError):
    """Some units of the plan are not committed yet."""


class CorruptStore(StoreError):
    """A file of the store is damaged."""

    exit_code = 3


class StorageError(TokenmillError):
    """A place behind a network does not answer, or does not let us in. What is committed stays."""


class MemoryShortage(TokenmillError):
    """The memory budget is smaller than what a document of the job may take."""


class RunFailed(TokenmillError):
    """The run ended with units that could not be done."""
