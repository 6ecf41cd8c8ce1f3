"""The manifest of a complete store: one row per part. What it states of its run and its parts is checked here."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import pyarrow as pa
import xxhash

from tokenmill.errors import CorruptStore, IncompleteStore
from tokenmill.storage.digest import canonical
from tokenmill.store import heartbeats
from tokenmill.store.erasing import refuse_unfinished
from tokenmill.store.erasures import refuse_earlier_parts
from tokenmill.store.last_end import is_failure, last_end, next_step
from tokenmill.store.layout import LOCK, MANIFEST, RUN, committed_units, damaged
from tokenmill.store.mismatch import refuse_suspect
from tokenmill.store.tables import MANIFEST_SCHEMA, has_impossible_counts, publish_table, read_table

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tokenmill.storage import Folder
    from tokenmill.store.job import Run
    from tokenmill.store.part import PartSummary

MANIFEST_RUN = b"tokenmill.run"
"""The metadata key under which the manifest names its run (see `manifest_run`)."""

MANIFEST_ROWS = b"tokenmill.rows"
"""The metadata key of the checksum of the manifest's rows: its counts are used before any part is opened."""

COUNT_COLUMNS = ("documents", "tokens", "text_bytes", "skipped", "quarantined")

LATER_COLUMNS = ("spelled", "xxh3", "bytes")
"""The columns that manifests of format 5 do not have."""


class ForeignManifest(CorruptStore):
    """The manifest names another run than `run.json`."""


class ManifestListing(NamedTuple):
    """A manifest and the hash of the checksums of its parts. The hash takes most of the time of opening a store."""

    manifest: pa.Table
    digest: str


def manifest_run(run: Run) -> bytes:
    """The identity of a run in its manifest: the job's digest, and the checksums of plan and sources."""
    return canonical({"job": run.job.digest(), "plan": run.plan_sha256, "sources": run.sources_sha256})


def log_run(run: Run) -> str:
    """The identity of a run in the lines of its log: the start of the hash of `manifest_run`."""
    return hashlib.sha256(manifest_run(run)).hexdigest()[:16]


def publish_manifest(folder: Folder, run: Run, manifest: pa.Table) -> None:
    """Publish the manifest of this run. The store is complete afterwards."""
    metadata = {MANIFEST_RUN: manifest_run(run), MANIFEST_ROWS: rows_checksum(manifest, parts_digest(manifest))}
    publish_table(folder, MANIFEST, manifest.replace_schema_metadata(metadata))


def rows_checksum(manifest: pa.Table, digest: str) -> bytes:
    """The checksum (XXH3, 128 bits) of the counts of a manifest and its `parts_digest`, which covers the rest."""
    checksum = xxhash.xxh3_128()
    for column in manifest.columns:
        if pa.types.is_integer(column.type):
            checksum.update(np.ascontiguousarray(column.to_numpy()).data)
    checksum.update(digest.encode())
    return checksum.hexdigest().encode()


def parts_digest(manifest: pa.Table) -> str:
    """The hash of the checksums of all parts."""
    digest = hashlib.sha256()
    for checksums in manifest["sha256"].chunks:
        if len(checksums):  # the texts are one after the other in memory: millions are hashed at once
            _, offsets, texts = checksums.buffers()
            edges = np.frombuffer(offsets, np.int32)[checksums.offset : checksums.offset + len(checksums) + 1]
            digest.update(memoryview(texts)[edges[0] : edges[-1]])
    return digest.hexdigest()


def require_manifest(folder: Folder, run: Run, skipped: Collection[str] = ()) -> pa.Table:
    """Read the manifest, without the skipped columns. Raises IncompleteStore if it is missing or parts are suspect."""
    return require_listing(folder, run, skipped).manifest


def require_listing(folder: Folder, run: Run, skipped: Collection[str] = ()) -> ManifestListing:
    """Read the manifest as `require_manifest` does, with the hash of the parts, which is computed to check it."""
    refuse_unfinished(folder, run)
    if folder.exists(MANIFEST):
        refuse_suspect(folder, run)
        listing = read_listing(folder, run, skipped)
        refuse_earlier_parts(folder, run, listing.digest)
        return listing
    committed = int(committed_units(folder, run.units).sum())
    raise IncompleteStore(
        f"the store {folder.root} is not complete",
        f"units        {committed:,} of {run.units:,} are committed",
        *_completion_advice(folder),
    )


def _completion_advice(folder: Folder) -> tuple[str, ...]:
    holder = folder.locks.holder(LOCK)
    if holder is not None:
        wait = "Wait for it to end; `tokenmill status --watch` shows its progress."
        return (f"Process {holder} is still writing it. {wait}",)
    end = last_end(folder, list(heartbeats.read(folder).values()))
    reason = (f"stopped      {end.outcome}: {end.headline}",) if end is not None and is_failure(end) else ()
    return (*reason, *next_step(end))


def read_manifest(folder: Folder, run: Run, skipped: Collection[str] = ()) -> pa.Table:
    """Read the manifest, without the skipped columns.

    Refuses one of another run, with other units than the plan, or with impossible counts.
    """
    return read_listing(folder, run, skipped).manifest


def read_listing(folder: Folder, run: Run, skipped: Collection[str] = ()) -> ManifestListing:
    """Read the manifest as `read_manifest` does, with the hash of the parts, which is computed to check it."""
    schema = _manifest_schema(run)
    wanted = [name for name in schema.names if name not in skipped]
    manifest = read_table(folder, MANIFEST, schema=schema, wanted=wanted)
    _check_manifest_run(folder, run, manifest)
    stated = (manifest.schema.metadata or {}).get(MANIFEST_ROWS)
    if run.format >= 6 and stated is None:
        raise damaged(folder, MANIFEST, "it has no checksum of its rows: an earlier version of tokenmill wrote it")
    digest = parts_digest(manifest)
    if run.format >= 6 and stated != rows_checksum(manifest, digest):
        raise damaged(folder, MANIFEST, "its rows are not as they were written")
    if not np.array_equal(manifest["unit"].to_numpy(), np.arange(run.units)):
        raise damaged(folder, MANIFEST, f"its units are not the {run.units} of the plan")
    for field in manifest.schema:
        if pa.types.is_integer(field.type) and has_impossible_counts(manifest[field.name]):
            raise damaged(folder, MANIFEST, f"its column {field.name} has impossible counts")
    return ManifestListing(manifest, digest)


def read_checksums(folder: Folder, run: Run) -> pa.Table:
    """Read only the checksums of the manifest."""
    checksums = read_table(folder, MANIFEST, schema=_manifest_schema(run), wanted=["sha256"])
    _check_manifest_run(folder, run, checksums)
    return checksums


def has_foreign_manifest(folder: Folder, run: Run) -> bool:
    """Whether the store has a manifest that names another run."""
    try:
        if folder.exists(MANIFEST):
            read_checksums(folder, run)
    except CorruptStore as error:
        return isinstance(error, ForeignManifest)
    return False


def manifest_row(s: PartSummary) -> tuple[int | str, ...]:
    """The manifest row of a part, without the size of its file."""
    counts = s.documents, s.tokens, s.text_bytes, s.skipped_rows, s.quarantined_rows, s.spelled_documents
    return s.unit, *counts, s.sha256, s.xxh3


def manifest_columns(rows: Sequence[tuple[int | str, ...]]) -> pa.Table:
    """A table of manifest rows, without the sizes of the files."""
    schema = MANIFEST_SCHEMA.remove(len(MANIFEST_SCHEMA) - 1)
    columns = list(zip(*rows, strict=True)) if rows else [()] * len(schema)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, schema, strict=True)]
    return pa.table(arrays, schema=schema)


def is_listed(manifest: pa.Table, summary: PartSummary) -> bool:
    """Whether the manifest row of this unit describes this part."""
    stated = dict(zip(MANIFEST_SCHEMA.names[:-1], manifest_row(summary), strict=True))
    rows = manifest.slice(summary.unit, 1).to_pylist()
    return any(all(row.get(name, value) == value for name, value in stated.items()) for row in rows)


def _manifest_schema(run: Run) -> pa.Schema:
    return pa.schema([field for field in MANIFEST_SCHEMA if run.format > 5 or field.name not in LATER_COLUMNS])


def _check_manifest_run(folder: Folder, run: Run, manifest: pa.Table) -> None:
    """Refuse a manifest of another run. Manifests of format 5 do not name their run."""
    stated = (manifest.schema.metadata or {}).get(MANIFEST_RUN)
    if run.format < 6 or stated == manifest_run(run):
        return
    if stated is None:
        raise damaged(folder, MANIFEST, "it does not name the run that it belongs to")
    raise ForeignManifest(*damaged(folder, MANIFEST, f"it belongs to another run than {RUN}").args)
