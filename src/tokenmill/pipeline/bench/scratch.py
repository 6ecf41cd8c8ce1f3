"""The directory that `bench` writes to: beside the future store, and removed at the end in any case."""

from __future__ import annotations

import os
import secrets
import tempfile
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokenmill.errors import StoreError
from tokenmill.storage import absolute, folder_at, scheme
from tokenmill.store.layout import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenmill.storage import Folder

PREFIX = ".tokenmill-bench-"
# A worker that was killed while it renamed a file may still add that file, so removing is tried again.
REMOVE_ATTEMPTS = 20
REMOVE_WAIT_SECONDS = 0.1


@contextmanager
def scratch(out: str | None) -> Iterator[Folder]:
    """A new folder in `out`, in its nearest existing parent, or in the directory for temporary files."""
    parent = folder_at(_nearest_existing(out or tempfile.gettempdir()))
    name = f"{PREFIX}{secrets.token_hex(6)}"
    try:
        folder = folder_at(f"{parent.root}/{name}")
        folder.create(PARTS)
        yield folder
    finally:
        _remove(parent, name)


def _nearest_existing(path: str) -> str:
    if scheme(path):
        return path
    path = absolute(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _remove(parent: Folder, name: str) -> None:
    for _ in range(REMOVE_ATTEMPTS):
        try:
            return parent.remove(name)
        except StoreError:
            time.sleep(REMOVE_WAIT_SECONDS)
    return parent.remove(name)
