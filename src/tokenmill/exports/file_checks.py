"""Tables of an export, stored with the digest of their export and a checksum of their rows."""

from __future__ import annotations

import msgspec
import pyarrow as pa

from tokenmill.errors import CorruptStore
from tokenmill.storage import Folder
from tokenmill.storage.digest import hash_of
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.storage.untrusted.parquet_pages import read_parquet
from tokenmill.store import tables
from tokenmill.store.layout import restart_advice

EXPORT_AGAIN = "Run the same `tokenmill export` again: it writes what is missing."
WRITE_AGAIN = "Remove the file, then run the same `tokenmill export` again: it writes what is missing."

# Metadata keys of tokenmill. Other keys are not part of the checksum.
_PREFIX = b"tokenmill."


class TableChecksum(msgspec.Struct, frozen=True):
    """The digest of a table's export, and the BLAKE3 of the table's rows and other metadata."""

    export: str
    blake3: str


def publish_checked(  # noqa: PLR0913 - a table, and where it belongs
    folder: Folder, name: str, table: pa.Table, key: bytes, export: str, *, if_absent: bool = False
) -> None:
    """Publish a table with a TableChecksum under this metadata key."""
    checksum = msgspec.json.encode(TableChecksum(export, _checksum(table, key)))
    tables.publish_table(
        folder,
        name,
        table.replace_schema_metadata({**(table.schema.metadata or {}), key: checksum}),
        if_absent=if_absent,
    )


def read_checked(folder: Folder, name: str, schema: pa.Schema, key: bytes, export: str) -> pa.Table:
    """Read a table. Raises CorruptStore if it is damaged or belongs to another export."""
    try:
        table = read_parquet(folder.buffer(name), schema)
        checksum = decode((table.schema.metadata or {}).get(key, b""), TableChecksum)
    except MalformedDataError as damage:
        raise damaged(folder, name, str(damage)) from damage
    if checksum.blake3 != _checksum(table, key):
        raise damaged(folder, name, "its rows are not those that its checksum was taken of")
    if checksum.export != export:
        raise CorruptStore(f"{folder.path(name)} is of another export", restart_advice(folder))
    return table


def damaged(folder: Folder, name: str, reason: str) -> CorruptStore:
    """Return the error for a table or file with invalid content."""
    return CorruptStore(f"{folder.path(name)} is damaged", f"reason       {reason}", WRITE_AGAIN)


def _checksum(table: pa.Table, key: bytes) -> str:
    """Return the BLAKE3 of the rows and of tokenmill's metadata, without the checksum itself."""
    metadata = table.schema.metadata or {}
    ours = [[name, metadata[name]] for name in sorted(metadata) if name.startswith(_PREFIX)]
    others = [entry for entry in ours if entry[0] != key]
    return hash_of(msgspec.json.encode([table.to_pylist(), others]))
