"""Small tables that follow from the parts of a store: made once, and kept in the folder `splits` of the store.

A table that is missing, damaged or made from other parts is made again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress

import pyarrow as pa
import xxhash

from tokenmill.errors import StorageError, StoreError
from tokenmill.storage import Folder
from tokenmill.store import layout, tables
from tokenmill.training.order import Numbers

# The metadata key under which a table names what it was made from (see `_stamp`).
STAMP = b"tokenmill.split"


def derived_columns(
    folder: Folder, name: str, schema: pa.Schema, origin: str, make: Callable[[], Sequence[Numbers]]
) -> list[Numbers]:
    """Read the columns of a table, or make them and, if the store can be written, keep them.

    `origin` is what they follow from: the parts, and the choices.
    """
    columns = _read(folder, name, schema, origin)
    if columns is None:
        columns = list(make())
        with suppress(StoreError, StorageError):  # a store that cannot be written is read all the same
            folder.create(layout.SPLITS)
            metadata = {STAMP: _stamp(origin, columns)}
            tables.publish_table(folder, name, pa.table(columns, schema=schema.with_metadata(metadata)))
    return columns


def _read(folder: Folder, name: str, schema: pa.Schema, origin: str) -> list[Numbers] | None:
    """Read a table; None if it is not there, damaged, or made from something else."""
    try:
        table = tables.read_table(folder, name, schema=schema) if folder.exists(name) else None
    except StoreError:
        return None
    if table is None:
        return None
    columns: list[Numbers] = [column.to_numpy() for column in table.columns]
    return columns if (table.schema.metadata or {}).get(STAMP) == _stamp(origin, columns) else None


def _stamp(origin: str, columns: Sequence[Numbers]) -> bytes:
    """What a table was made from, and its checksum: every batch depends on every number."""
    return f"{origin} {xxhash.xxh3_128_hexdigest(b''.join(column.tobytes() for column in columns))}".encode()
