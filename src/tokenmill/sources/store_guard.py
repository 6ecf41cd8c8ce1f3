"""Exclude token stores, and the exports inside them, from the search for sources.

The store of a run may be inside one of its source directories. Its parts, tables and log have extensions of sources and
appear during the run. Without this module, the next call would read them as new sources.
"""

from __future__ import annotations

import os
import re

from tokenmill import storage
from tokenmill.errors import SourceError

RUN = "run.json"
# The names of the files and directories of a store.
_STORE_NAMES = re.compile(
    r"run\.json|sources(-[0-9a-f]+)?\.parquet|plan(-[0-9a-f]+)?\.parquet|manifest\.parquet|log(-\d+)?\.jsonl|log"
    r"|quarantine\.jsonl|quarantine|parts|kept|deny|tokenizer|drivers|rows|engine-mismatch\.json|rechecked"
)
# A directory with a `run.json` is a store if it contains at least this many names of a store.
MIN_STORE_NAMES = 3


class StoreGuard:
    """Recognizes stores during the search: the one at `out`, which may not exist yet, and all others."""

    def __init__(self, out: str | None = None) -> None:
        self._out = None if out is None else storage.identity_at(out)

    def is_marker(self, name: str) -> bool:
        """Whether a name is that of a file or directory of a store."""
        return _STORE_NAMES.fullmatch(name) is not None

    def skips(self, directory: storage.Directory) -> bool:
        """Whether a directory is a store or will be the store of this run."""
        return self.is_out(directory.identity) or _is_store(directory.names)

    def skips_name(self, directory: storage.Directory, name: str) -> bool:
        """Whether a name in a directory belongs to a store. A glob still finds other files in a store's directory."""
        return self.is_marker(name) and self.skips(directory)

    def is_out(self, identity: storage.Identity | None) -> bool:
        """Whether this is the directory of the run's own store."""
        return self._out is not None and identity == self._out

    def is_written_by_run(self, path: str) -> bool:
        """Whether the run itself writes this file. A shell that expands `*` names such files explicitly."""
        directory, _, name = path.rpartition("/")
        return self._out is not None and self.is_marker(name) and self.is_out(storage.identity_at(directory))

    def refuse_store(self, listing: storage.Listing) -> None:
        """Raise SourceError if the searched directory is itself a store."""
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
            "It holds tokens. Give the files with the text.",
        )


def _is_store(names: frozenset[str]) -> bool:
    return RUN in names and sum(_STORE_NAMES.fullmatch(name) is not None for name in names) >= MIN_STORE_NAMES
