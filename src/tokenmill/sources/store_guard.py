"""Token stores among the sources: the directory of a store, with the exports inside it, is not searched for text.

The store of a run may be inside one of its source directories. Its parts, tables and log have endings of sources, and
appear while the run goes on: without this the next call would take them for new sources.
"""

from __future__ import annotations

import os
import re

from tokenmill import storage
from tokenmill.errors import SourceError

RUN = "run.json"
_OWN = re.compile(
    r"run\.json|sources(-[0-9a-f]+)?\.parquet|plan(-[0-9a-f]+)?\.parquet|manifest\.parquet|log(-\d+)?\.jsonl|log"
    r"|quarantine\.jsonl|quarantine|parts|tokenizer|drivers|rows|engine-mismatch\.json|rechecked"
)
"""What a store calls its files and directories."""

MIN_OWN_NAMES = 3
"""A directory with a `run.json` is a store if it holds at least this many names of a store."""


class StoreGuard:
    """Keeps stores apart from sources: that at `out`, which may not be there yet, and all that are met."""

    def __init__(self, out: str | None = None) -> None:
        self._out = None if out is None else storage.identity_at(out)

    def is_marker(self, name: str) -> bool:
        """Whether a name is one that a store has."""
        return _OWN.fullmatch(name) is not None

    def skips(self, directory: storage.Directory) -> bool:
        """Whether a directory is a store, or will be the store of this run."""
        return self.is_out(directory.identity) or _is_store(directory.names)

    def skips_name(self, directory: storage.Directory, name: str) -> bool:
        """Whether a name belongs to a store: in a store's own directory a glob still finds other files."""
        return self.is_marker(name) and self.skips(directory)

    def is_out(self, identity: storage.Identity | None) -> bool:
        """Whether this is the directory of the run's own store."""
        return self._out is not None and identity == self._out

    def is_written_by_run(self, path: str) -> bool:
        """Whether a file that is named by its path is one that the run itself writes: a shell's `*` names them, too."""
        directory, _, name = path.rpartition("/")
        return self._out is not None and self.is_marker(name) and self.is_out(storage.identity_at(directory))

    def refuse_store(self, listing: storage.Listing) -> None:
        """Raise SourceError if the directory that was to be searched is itself a store."""
        if listing.searched not in listing.skipped:
            return
        if self.is_out(storage.identity_at(listing.searched)):
            raise SourceError(
                "a directory cannot be a source and the store of the same run",
                f"given        {listing.searched}",
                f"Write the store to a directory of its own: --out {os.path.join(listing.searched, 'tokens')}",
            )
        raise SourceError(
            "a token store is not a source",
            f"given        {listing.searched}",
            "It holds tokens. Give the text that they were made of.",
        )


def _is_store(names: frozenset[str]) -> bool:
    return RUN in names and sum(_OWN.fullmatch(name) is not None for name in names) >= MIN_OWN_NAMES
