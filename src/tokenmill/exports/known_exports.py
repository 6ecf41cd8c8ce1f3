"""The exports that a store knows of: those in its directory, and those that were recorded in it when they were made."""

from __future__ import annotations

import hashlib

import msgspec

from tokenmill.errors import StorageError, StoreError
from tokenmill.exports.formats import OWN
from tokenmill.exports.job import exports_in
from tokenmill.storage import Folder, scheme
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import layout
from tokenmill.store.collection import Collection


class KnownExport(msgspec.Struct, frozen=True):
    """An export that is not at its default place in the store. A path in the store is relative, so that it can move."""

    directory: str


def record_export(export: Folder, stores: Collection) -> list[str]:
    """Record an export in each of its stores, unless it is at its default place there.

    Returns a notice if a store is read-only.
    """
    notices = []
    for member in stores.members:
        try:
            add_export(member.folder, export.root)
        except (StoreError, StorageError, OSError):
            notices.append(f"the export is not recorded in {member.directory}: name it when documents are erased there")
    return notices


def add_export(store: Folder, directory: str) -> None:
    """Record an export in a store, unless it is recorded there already."""
    directory = directory.removeprefix(f"{store.root}/")
    name = f"{layout.EXPORTS}/{hashlib.sha256(directory.encode()).hexdigest()[:16]}.json"
    if directory not in OWN and not store.exists(name):
        store.create(layout.EXPORTS)
        layout.publish_json(store, name, KnownExport(directory))


def known_exports(folder: Folder) -> list[str]:
    """The directories of the exports that a store knows of, whether they still exist or not."""
    known = [folder.path(name) for name in exports_in(folder)]
    for name in sorted(name for name in folder.names(layout.EXPORTS) if name.endswith(".json")):
        try:
            record = decode(folder.read(f"{layout.EXPORTS}/{name}", layout.MAX_JSON_BYTES), KnownExport)
            is_absolute = bool(scheme(record.directory)) or record.directory.startswith("/")
            known.append(record.directory if is_absolute else folder.path(record.directory))
        except MalformedDataError:
            known.append(folder.path(f"{layout.EXPORTS}/{name}"))
    return list(dict.fromkeys(known))
