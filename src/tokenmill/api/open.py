"""`open`: read complete stores."""

from __future__ import annotations

from tokenmill.api.parameters import store_paths
from tokenmill.options import Stores
from tokenmill.store.reader import Store
from tokenmill.system.arguments import checked

__all__ = ["Store", "open"]


@checked
def open(directory: Stores) -> Store:  # noqa: A001 - the name users know: tokenmill.open
    """Open a complete store, or several as one. Parts are opened when their documents are asked for.

    Args:
        directory: The store: a path, or an address such as `s3://bucket/run`. Several stores need the same tokenizer
            and the same begin and end tokens. Their documents follow each other in this order.
    """
    return Store(store_paths(directory))
