"""Where `bench` writes: a directory of its own, beside the store that is to come, and removed however it ends."""

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
from tokenmill.system import procfs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenmill.storage import Folder

PREFIX = ".tokenmill-bench-"
REMOVALS = 20
REMOVAL_SECONDS = 0.1
"""A worker that was killed while it gave a file its name may still have done so."""

IN_MEMORY = ("tmpfs", "ramfs")


@contextmanager
def scratch(out: str | None) -> Iterator[Folder]:
    """A folder of our own in `out`, or in the nearest directory above it that exists, or where temporary files go."""
    parent = folder_at(_existing(out or tempfile.gettempdir()))
    name = f"{PREFIX}{secrets.token_hex(6)}"
    try:
        folder = folder_at(f"{parent.root}/{name}")
        folder.create(PARTS)
        yield folder
    finally:
        _remove(parent, name)


def is_in_memory(path: str) -> bool:
    """Whether what is written there never comes to a disk, as far as the system tells."""
    if scheme(path):
        return False
    path, longest, kind = os.path.realpath(path), "", ""
    for line in procfs.read(f"{procfs.PROC}/self/mountinfo").decode(errors="replace").splitlines():
        place, _, rest = line.partition(" - ")
        mounted = place.split()[4] if rest else ""
        if len(mounted) >= len(longest) and os.path.join(path, "").startswith(os.path.join(mounted, "")):
            longest, kind = mounted, rest.split()[0]
    return kind in IN_MEMORY


def _existing(path: str) -> str:
    if scheme(path):
        return path
    path = absolute(path)
    while not os.path.isdir(path):
        path = os.path.dirname(path)
    return path


def _remove(parent: Folder, name: str) -> None:
    for _ in range(REMOVALS):
        try:
            return parent.remove(name)
        except StoreError:
            time.sleep(REMOVAL_SECONDS)
    return parent.remove(name)
