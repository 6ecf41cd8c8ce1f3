"""Decides where a report writes its page and its card. Neither replaces files of another kind, nor those of a store."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from tokenmill.errors import StoreError, UsageError
from tokenmill.storage import Folder, absolute, folder_at, resolved, scheme

REPORT = "report.html"
SUFFIX = ".html"
NOT_A_PAGE = f"it is there already, and its name does not end in {SUFFIX}"
CARD = "README.md"
CROISSANT = "croissant.json"
# A README.md with this line was written by `report --card`, and may be replaced by it.
MARKER = "<!-- Written by `tokenmill report --card`. Remove this line to protect your changes from the next one. -->"
# A text that is in every file that `report --card` writes.
_MARKERS = {CARD: MARKER.encode(), CROISSANT: b'"tokenmill prepare"'}
# A larger file is not one of ours.
MAX_CARD_BYTES = 64 << 20


def page_destination(directories: Sequence[str], out: str | None) -> tuple[Folder, str]:
    """The folder and the name of the page: `out`, or report.html in the last store."""
    stores = list(map(folder_at, directories))
    store = stores[-1]
    if out is None:
        folder, name = store, REPORT
    elif not os.path.basename(out) or (not scheme(out) and os.path.isdir(out)):
        raise UsageError(
            f"--out is the name of a file, and {out} is a directory", f"Write {os.path.join(out, REPORT)}."
        )
    else:
        path = absolute(out)
        for one in stores:
            path = _follow_link(one, path)
        parent, name = os.path.split(path)
        folder = existing_folder("--out", parent)
    for one in stores:
        _refuse_store_files(one, folder, name)
    _refuse_other_files(folder, name)
    return folder, name


def existing_folder(option: str, path: str) -> Folder:
    """The folder at a path. Raises UsageError if it is local and not there: its name may be misspelled."""
    folder = folder_at(path)
    if not folder.is_remote and not os.path.isdir(folder.root):
        raise UsageError(
            f"there is no directory {folder.root}", f"Create it first, or give {option} a file in another directory."
        )
    return folder


def _follow_link(store: Folder, path: str) -> str:
    """The target of a link, as writing to it would reach. A link in a store is untrusted, and not followed."""
    if scheme(path) or resolved(os.path.dirname(path)) == resolved(store.root):
        return path
    return resolved(path) if os.path.islink(path) else path


def _refuse_store_files(store: Folder, folder: Folder, name: str) -> None:
    """Inside a store, a page may only be at the top level."""
    parent, root = resolved(folder.root), resolved(store.root)
    if f"{parent}/".startswith(f"{root}/") and not (parent == root and _is_page(name)):
        raise UsageError(
            "the page would be among the files of the store",
            f"file         {folder.path(name)}",
            f"Give --out another name, such as {store.path(REPORT)}.",
        )


def _refuse_other_files(folder: Folder, name: str) -> None:
    """An existing path is replaced only if it is a regular file with the name of a page."""
    path = folder.path(name)
    if folder.is_remote:
        reason = "" if _is_page(name) or not folder.exists(name) else NOT_A_PAGE
    elif not os.path.lexists(path):
        reason = ""
    elif not stat.S_ISREG(os.lstat(path).st_mode):
        reason = "it is no regular file"
    else:
        reason = "" if _is_page(name) else NOT_A_PAGE
    if reason:
        raise UsageError(
            "--out would replace something that is no page",
            f"file         {path}",
            f"reason       {reason}",
            "Remove it, or give --out another name.",
        )


def _is_page(name: str) -> bool:
    return name.lower().endswith(SUFFIX)


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
