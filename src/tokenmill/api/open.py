"""`open`: read a complete store."""

from __future__ import annotations

from tokenmill.store.reader import Store


def open(directory: str) -> Store:  # noqa: A001 - the name users know: tokenmill.open
    """Open a complete store."""
    return Store(directory)
