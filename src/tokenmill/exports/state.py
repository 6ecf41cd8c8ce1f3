"""The progress of the exports inside a store."""

from __future__ import annotations

from tokenmill.exports import records
from tokenmill.exports.job import PLAN, exports_in, is_complete
from tokenmill.exports.shards import SCHEMA
from tokenmill.storage import Folder, folder_at
from tokenmill.store import tables


def export_states(store: Folder) -> dict[str, str]:
    """Return the state of each export in the directory of a store, by format."""
    return {name: _state(folder_at(store.path(name))) for name in exports_in(store)}


def _state(export: Folder) -> str:
    if is_complete(export):
        return "complete"
    if not export.exists(PLAN):
        return "not planned yet"
    shards = len(tables.read_table(export, PLAN, schema=SCHEMA))
    return f"{records.committed(export, shards).sum():,} of {shards:,} shards"
