"""Decides where a card is written. It replaces only files that `report --card` wrote."""

from __future__ import annotations

import os
from collections.abc import Sequence

from tokenmill.analysis.card.readme import MARKER
from tokenmill.errors import StoreError, UsageError
from tokenmill.storage import Folder, absolute, folder_at, resolved

CARD = "README.md"
CROISSANT = "croissant.json"

# A text that is in every file that `report --card` writes.
_MARKERS = {CARD: MARKER.encode(), CROISSANT: b'"tokenmill prepare"'}

# A larger file is not one of ours.
MAX_CARD_BYTES = 64 << 20


def card_destination(directories: Sequence[str], card: str) -> Folder:
    """The folder of a card. Raises UsageError if the card would be among the files of a store, or replace others."""
    folder = folder_at(absolute(card))
    if not folder.is_remote and os.path.lexists(folder.root) and not os.path.isdir(folder.root):
        raise UsageError(f"--card is the name of a directory, and {folder.root} is a file")
    for directory in directories:
        root, inside = resolved(folder_at(directory).root), resolved(folder.root)
        is_shared = inside == root and len(directories) > 1
        if is_shared or inside.startswith(f"{root}/"):
            raise UsageError(
                "the card would be inside one of several stores"
                if is_shared
                else "the card would be among the files of the store",
                f"card         {folder.root}",
                f"store        {root}",
                "Give --card a directory of its own, or that of a single store.",
            )
    for name in _MARKERS:
        if folder.exists(name) and not _is_card(folder, name):
            raise UsageError(
                "--card would replace something that is no card",
                f"file         {folder.path(name)}",
                "Move it, or give --card another directory.",
            )
    return folder


def _is_card(folder: Folder, name: str) -> bool:
    """Whether an existing file was written by `report --card`. A pipe or a device was not."""
    try:
        return _MARKERS[name] in folder.read(name, MAX_CARD_BYTES)
    except StoreError:
        return False
