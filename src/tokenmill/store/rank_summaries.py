"""One file for each rank of a run, which lists the parts that the rank has made.

The rank that publishes the manifest reads these files, and the footers only of parts that no file lists. A file is
named by the start of its hash and is never changed. A rank that was killed has no file. The files are removed when the
manifest is published. They lie beside the heartbeats, in a directory that stays: a late rank still writes its file
while another one removes those that it has found.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pyarrow as pa

from tokenmill.errors import StoreError
from tokenmill.storage import Folder, prefetch_map
from tokenmill.storage.digest import hash_of
from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.storage.untrusted.parquet_pages import read_parquet
from tokenmill.store.job import Run
from tokenmill.store.layout import DRIVERS
from tokenmill.store.tables import MANIFEST_RUN, MANIFEST_SCHEMA, OPTIONAL, manifest_run, table_bytes

REASONS = pa.field("reasons", pa.string())
"""JSON: how many rows of the part were skipped, for each reason."""

SUMMARY_SCHEMA = MANIFEST_SCHEMA.remove(MANIFEST_SCHEMA.get_field_index("bytes")).append(REASONS)


def publish_summaries(folder: Folder, run: Run, rows: pa.Table) -> None:
    """Publish the rows of the parts that this rank has made."""
    data = table_bytes(rows.cast(SUMMARY_SCHEMA).replace_schema_metadata({MANIFEST_RUN: manifest_run(run)}))
    folder.create(DRIVERS)
    with folder.publish(_name(data)) as file:
        file.write(data)


def read_summaries(folder: Folder, run: Run) -> Iterator[pa.Table]:
    """Read the rows that the ranks of this run have published. Files of another run and damaged files are left out."""
    for found in prefetch_map(folder, lambda name: _read(folder, name, run), summary_names(folder)):
        if found is not None:
            yield found


def remove_summaries(folder: Folder) -> None:
    """Remove the files of all ranks."""
    for name in summary_names(folder):
        folder.discard(name)


def summary_names(folder: Folder) -> list[str]:
    """The files of all ranks."""
    return sorted(f"{DRIVERS}/{name}" for name in folder.names(DRIVERS) if name.endswith(".parquet"))


def _read(folder: Folder, name: str, run: Run) -> pa.Table | None:
    with suppress(StoreError, MalformedDataError):
        data = folder.buffer(name)
        rows = read_parquet(data, SUMMARY_SCHEMA, OPTIONAL) if name == _name(data) else None
        if rows is not None and (rows.schema.metadata or {}).get(MANIFEST_RUN) == manifest_run(run):
            return rows.replace_schema_metadata()
    return None


def _name(data: bytes | pa.Buffer) -> str:
    return f"{DRIVERS}/{hash_of(data)[:16]}.parquet"
