"""The manifest of a complete store: one row per part. What it states of its run and its parts is checked here."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
import numpy as np
import pyarrow as pa
import xxhash

from tokenmill.errors import CorruptStore
from tokenmill.humanize import Readable
from tokenmill.sources.spelled import searched_documents
from tokenmill.storage import Folder
from tokenmill.storage.digest import canonical, hash_of
from tokenmill.store.job import Run
from tokenmill.store.layout import MANIFEST, RUN, damaged
from tokenmill.store.part import PartSummary
from tokenmill.store.tables import MANIFEST_SCHEMA, has_impossible_counts, parts_digest, publish_table, read_table

MANIFEST_RUN = b"tokenmill.run"
"""The metadata key under which the manifest names its run (see `manifest_run`)."""

MANIFEST_ROWS = b"tokenmill.rows"
"""The metadata key of the checksum of the manifest's rows: its counts are used before any part is opened."""

COUNT_COLUMNS = ("documents", "tokens", "text_bytes", "skipped", "quarantined")


class ForeignManifest(CorruptStore):
    """The manifest names another run than `run.json`."""


def manifest_run(run: Run) -> bytes:
    """The identity of a run in its manifest: the job's digest, and the checksums of plan and sources."""
    return canonical({"job": run.job.digest(), "plan": run.plan_blake3, "sources": run.sources_blake3})


def log_run(run: Run) -> str:
    """The identity of a run in the lines of its log: the start of the hash of `manifest_run`."""
    return hash_of(manifest_run(run))[:16]


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


def read_manifest(folder: Folder, run: Run, skipped: Collection[str] = ()) -> pa.Table:
    """Read the manifest as `prepare` wrote it, without the skipped columns: the base of all changes.

    Refuses one of another run, with other units than the plan, or with impossible counts.
    """
    wanted = [name for name in MANIFEST_SCHEMA.names if name not in skipped]
    manifest = read_table(folder, MANIFEST, wanted=wanted)
    _check_manifest_run(folder, run, manifest)
    stated, digest = (manifest.schema.metadata or {}).get(MANIFEST_ROWS), parts_digest(manifest)
    if stated != rows_checksum(manifest, digest):
        raise damaged(folder, MANIFEST, "its rows are not as they were written")
    if not np.array_equal(manifest["unit"].to_numpy(), np.arange(run.units)):
        raise damaged(folder, MANIFEST, f"its units are not the {run.units} of the plan")
    for field in manifest.schema:
        if pa.types.is_integer(field.type) and has_impossible_counts(manifest[field.name]):
            raise damaged(folder, MANIFEST, f"its column {field.name} has impossible counts")
    return manifest


def read_checksums(folder: Folder, run: Run) -> pa.Table:
    """Read only the checksums of the manifest."""
    checksums = read_table(folder, MANIFEST, wanted=["blake3"])
    _check_manifest_run(folder, run, checksums)
    return checksums


def manifest_row(s: PartSummary) -> tuple[int | str, ...]:
    """The manifest row of a part, without the size of its file."""
    counts = s.documents, s.tokens, s.text_bytes, s.skipped_rows, s.quarantined_rows, s.spelled
    return s.unit, *counts, s.blake3, s.xxh3


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


def _check_manifest_run(folder: Folder, run: Run, manifest: pa.Table) -> None:
    """Refuse a manifest of another run."""
    stated = (manifest.schema.metadata or {}).get(MANIFEST_RUN)
    if stated == manifest_run(run):
        return
    if stated is None:
        raise damaged(folder, MANIFEST, "it does not name the run that it belongs to")
    raise ForeignManifest(*damaged(folder, MANIFEST, f"it belongs to another run than {RUN}").args)


def manifest_totals(manifest: pa.Table) -> dict[str, int]:
    """The sums of the manifest's counts: documents, tokens, text_bytes, skipped and quarantined."""
    return {name: int(np.sum(manifest[name].to_numpy())) for name in COUNT_COLUMNS}


class ControlTokens(Readable, msgspec.Struct, frozen=True):
    """How many documents spell a control token, such as `<|im_start|>` or `<think>`, of those that were searched."""

    documents: int
    searched: int

    @classmethod
    def of(cls, manifest: pa.Table) -> ControlTokens:
        """The counts of a store."""
        documents = searched_documents(manifest["documents"].to_numpy())
        return cls(int(np.sum(manifest["spelled"].to_numpy())), documents)

    def plus(self, other: ControlTokens) -> ControlTokens:
        """The counts of two stores."""
        return ControlTokens(self.documents + other.documents, self.searched + other.searched)
