"""Decides where a report writes its page and its card. Neither replaces files of another kind, nor those of a store."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from tokenmill.errors import StoreError, UsageError
from tokenmill.storage import Folder, absolute, folder_at, resolved

REPORT = "report.html"
SUFFIX = ".html"
CARD = "README.md"
CROISSANT = "croissant.json"
# A README.md with this line was written by `report --card`, and may be replaced by it.
MARKER = "<!-- Written by `tokenmill report --card`. Remove this line to protect your changes from the next one. -->"
# A text that is in every file that `report --card` writes.
_MARKERS = {CARD: MARKER.encode(), CROISSANT: b'"tokenmill prepare"'}
# A larger file is not one of ours.
MAX_CARD_BYTES = 64 << 20


def page_destination(option: str, out: str, stores: Sequence[str] = ()) -> tuple[Folder, str]:
    """The folder and the name of a page. It may replace a page, but nothing else, and no file of a store.

    A link is followed, as by writing to it. One in a store is untrusted, and refused.
    """
    path, roots = absolute(out), [resolved(folder_at(store).root) for store in stores]
    if os.path.islink(path) and resolved(os.path.dirname(path)) not in roots:
        path = resolved(path)
    parent, name = os.path.split(path)
    if not name.lower().endswith(SUFFIX):
        raise UsageError(f"{option} {out} is not the name of a page", f"Give a name that ends in {SUFFIX}.")
    folder = folder_at(parent)
    if not folder.is_remote and not os.path.isdir(folder.root):
        raise UsageError(
            f"there is no directory {folder.root}", f"Create it first, or give {option} a file in another directory."
        )
    if any(resolved(folder.root).startswith(f"{root}/") for root in roots):
        raise UsageError(
            "the page would be among the files of the store",
            f"file         {folder.path(name)}",
            f"Give {option} another directory.",
        )
    if not folder.is_remote and os.path.lexists(path) and not stat.S_ISREG(os.lstat(path).st_mode):
        raise UsageError(f"{option} would replace something that is no page", f"file         {path}")
    return folder, name


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
