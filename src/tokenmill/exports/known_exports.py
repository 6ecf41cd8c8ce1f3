"""The exports that a store knows of: those in its directory, and those that were recorded in it when they were made."""

from __future__ import annotations

import hashlib

import msgspec

from tokenmill.errors import StorageError, StoreError
from tokenmill.exports.job import exports_in
from tokenmill.storage import Folder
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import layout
from tokenmill.store.collection import Collection


class KnownExport(msgspec.Struct, frozen=True):
    """An export outside of the directory of its store."""

    directory: str


def record_export(export: Folder, stores: Collection) -> list[str]:
    """Record an export in each of its stores that does not contain it. Returns a notice if a store is read-only."""
    name = f"{layout.EXPORTS}/{hashlib.sha256(export.root.encode()).hexdigest()[:16]}.json"
    notices = []
    for member in stores.members:
        if export.root.rpartition("/")[0] == member.directory:
            continue
        try:
            if not member.folder.exists(name):
                member.folder.create(layout.EXPORTS)
                layout.publish_json(member.folder, name, KnownExport(export.root))
        except (StoreError, StorageError, OSError):
            notices.append(f"the export is not recorded in {member.directory}: name it when documents are erased there")
    return notices


def known_exports(folder: Folder) -> list[str]:
    """The directories of the exports that a store knows of, whether they still exist or not."""
    known = [folder.path(name) for name in exports_in(folder)]
    for name in sorted(folder.names(layout.EXPORTS)):
        try:
            known.append(decode(folder.read(f"{layout.EXPORTS}/{name}", layout.MAX_JSON_BYTES), KnownExport).directory)
        except MalformedDataError:
            known.append(folder.path(f"{layout.EXPORTS}/{name}"))
    return list(dict.fromkeys(known))
