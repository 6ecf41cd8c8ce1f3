"""The mark of a store whose parts are being changed by an erasure. Readers refuse such a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tokenmill.errors import IncompleteStore, UsageError
from tokenmill.storage import publish_new, read_existing
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store.layout import MAX_JSON_BYTES, json_bytes

if TYPE_CHECKING:
    from tokenmill.storage import Folder
    from tokenmill.store.job import Run

ERASING = "erasing.json"

# The request of a mark that cannot be read: no request has this name, so each one is refused.
UNREADABLE = "?"


class ErasingMark(msgspec.Struct, frozen=True):
    """What is being done to the store, and the command that finishes it. The request of an upgrade is empty."""

    what: str
    command: str
    request: str = ""


def publish_mark(folder: Folder, mark: ErasingMark) -> None:
    """Mark the store, before `run.json` gets format 8 and the first part is changed.

    Raises UsageError if the store has another mark. An object store has no lock, so two processes may try.
    """
    while not publish_new(folder, ERASING, json_bytes(mark)):
        present = read_mark(folder)
        refuse_other(present, mark.request)
        if present is not None:
            return


def refuse_other(mark: ErasingMark | None, request: str) -> None:
    """Raise UsageError if the store is marked for something other than this request."""
    if mark is not None and mark.request != request:
        raise UsageError(f"{mark.what} is not finished", f"Run this command first: {mark.command}")


def read_mark(folder: Folder) -> ErasingMark | None:
    """Read the mark; None if the store has none."""
    data = read_existing(folder, ERASING, MAX_JSON_BYTES)
    try:
        return None if data is None else decode(data, ErasingMark)
    except MalformedDataError:
        return ErasingMark("an erasure", f"tokenmill erase {folder.root} with the options of before", UNREADABLE)


def remove_mark(folder: Folder, request: str) -> None:
    """Remove the mark of a request: the store can be read again. The mark of another request stays."""
    mark = read_mark(folder)
    if mark is None or mark.request != request:
        return
    folder.discard(ERASING)
    folder.sync_directory(".")


def refuse_unfinished(folder: Folder, run: Run) -> None:
    """Refuse a store in which an erasure has begun and has not ended.

    Stores that were never changed have a lower format and no mark, so they cost no request.
    """
    mark = read_mark(folder) if run.history else None
    if mark is not None:
        raise IncompleteStore(
            f"{mark.what} of {folder.root} is not finished", f"Run this command again: {mark.command}"
        )
