"""`open`: read a complete store."""

from __future__ import annotations

from tokenmill.api.parameters import StrPath
from tokenmill.store.reader import Store


def open(directory: StrPath) -> Store:  # noqa: A001 - the name users know: tokenmill.open
    """Open a complete store. Parts are opened when their documents are asked for.

    Args:
        directory: The store: a path, or an address such as `s3://bucket/run`.
    """
    return Store(directory)
