"""The tables of a run: plan, sources and manifest. Their schemas, and how they are read, published and checked."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tokenmill.digest import canonical
from tokenmill.errors import CorruptStore, IncompleteStore, StoreError
from tokenmill.sources import KINDS
from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.storage.untrusted.tables import count_rows, read_parquet
from tokenmill.store.erasing import refuse_unfinished
from tokenmill.store.layout import LOCK, MANIFEST, PLAN, RUN, SOURCES, committed_units, damaged, lost, table_name
from tokenmill.store.mismatch import refuse_suspect

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from tokenmill.storage import Folder
    from tokenmill.store.job import Run
    from tokenmill.store.part import PartSummary

FOOTER_BYTES = 1 << 20
"""The bytes read from the end of a table. The footers of plan and sources are smaller."""

DETAIL = "detail"
"""The column of packed footers. It is compressed with snappy: similar footers would compress so well with zstd that
the reader would refuse the table as a decompression bomb."""

PLAN_GROUP_UNITS = 1 << 15
"""Units per row group. While a row group is read, it is in memory twice."""

PLAN_SCHEMA = pa.schema(
    [
        ("source", pa.uint32()),  # the first source of the unit
        ("sources", pa.uint32()),  # the number of consecutive sources in it
        ("start", pa.int64()),  # the slice of a single source; null if the unit consists of whole sources
        ("stop", pa.int64()),
        ("text_bytes", pa.int64()),  # an estimate, made without reading the text
        ("rows", pa.int64()),  # null if the rows cannot be counted without reading
        (
            DETAIL,
            pa.large_binary(),
        ),  # the part of the file's footer that the slice needs, so that no worker reads it again
    ]
)

MANIFEST_SCHEMA = pa.schema(
    [
        ("unit", pa.int64()),
        ("documents", pa.int64()),
        ("tokens", pa.int64()),
        ("text_bytes", pa.int64()),
        ("skipped", pa.int64()),
        ("quarantined", pa.int64()),  # included in `skipped`
        ("sha256", pa.string()),
        ("xxh3", pa.string()),
        ("bytes", pa.int64()),  # the size of the part's file
    ]
)

MANIFEST_RUN = b"tokenmill.run"
"""The metadata key under which the manifest names its run (see `manifest_run`)."""

MANIFEST_ROWS = b"tokenmill.rows"
"""The metadata key of the checksum of the manifest's rows: its counts are used before any part is opened."""

CHECKSUM_COLUMNS = ("sha256", "xxh3")

COUNT_COLUMNS = ("documents", "tokens", "text_bytes", "skipped", "quarantined")

_MANIFEST_COLUMNS = {5: MANIFEST_SCHEMA.names[:-2], 6: MANIFEST_SCHEMA.names, 7: MANIFEST_SCHEMA.names}
_MANIFEST_COLUMNS[8] = MANIFEST_SCHEMA.names

_SCHEMAS = {
    PLAN: PLAN_SCHEMA,
    SOURCES: pa.schema(
        [
            ("path", pa.string()),
            ("kind", pa.dictionary(pa.int32(), pa.string())),
            ("size", pa.int64()),
            ("fingerprint", pa.string()),
            ("identity", pa.uint64()),
        ]
    ),
    MANIFEST: MANIFEST_SCHEMA,
}

_OPTIONAL = ("start", "stop", "rows", DETAIL)
"""The columns that may be null."""


def table_bytes(table: pa.Table) -> bytes:
    """Encode a table as Parquet."""
    sink = pa.BufferOutputStream()
    if table.schema.equals(PLAN_SCHEMA):
        names = [name for name in table.column_names if name != DETAIL]
        codecs = {**dict.fromkeys(names, "zstd"), DETAIL: "snappy"}
        options = {"use_dictionary": names, "write_statistics": names, "row_group_size": PLAN_GROUP_UNITS}
        pq.write_table(table, sink, compression=codecs, **options)
    elif table.schema.equals(MANIFEST_SCHEMA):
        # Checksums never repeat. With a dictionary of them, a reader would have to compare them all to measure it.
        names = [name for name in table.column_names if name not in CHECKSUM_COLUMNS]
        pq.write_table(table, sink, compression="zstd", use_dictionary=names)
    else:
        pq.write_table(table, sink, compression="zstd")
    data: bytes = sink.getvalue().to_pybytes()
    return data


def publish_table(folder: Folder, name: str, table: pa.Table) -> None:
    """Publish a table as Parquet."""
    with folder.publish(name) as file:
        file.write(table_bytes(table))


def read_table(
    folder: Folder,
    name: str,
    sha256: str | None = None,
    schema: pa.Schema | None = None,
    wanted: Collection[str] | None = None,
) -> pa.Table:
    """Read and check a table that `publish_table` wrote.

    Args:
        folder: The directory.
        name: The name of the file.
        sha256: The expected hash, if the run states one.
        schema: The expected schema; by default the schema of the table with this name.
        wanted: The columns to read; by default all.
    """
    try:
        data = folder.buffer(name)
    except StoreError:
        if sha256 is None or folder.exists(name):
            raise
        raise lost(folder, name) from None
    if sha256 is not None and hashlib.sha256(data).hexdigest() != sha256:
        raise damaged(folder, name, f"it is not the file that {RUN} names")
    try:
        return read_parquet(data, schema or _SCHEMAS.get(name), _OPTIONAL, wanted)
    except MalformedDataError as damage:
        raise damaged(folder, name, str(damage)) from damage


def read_plan(folder: Folder, run: Run) -> pa.Table:
    """Read the plan of a run. Refuses units with unknown sources or invalid sizes."""
    plan = read_table(folder, table_name(folder, PLAN, run.plan_sha256), run.plan_sha256, PLAN_SCHEMA)
    source, sources = (plan[name].to_numpy().astype(np.int64) for name in ("source", "sources"))
    slices = [plan[name].fill_null(0).to_numpy() for name in ("start", "stop", "text_bytes", "rows")]
    if bool((source + sources > run.sources).any()) or bool((sources < 1).any()):
        raise damaged(folder, PLAN, f"a unit is not of the {run.sources} sources")
    if any(bool((column < 0).any()) for column in slices) or _is_impossible(plan["text_bytes"]):
        raise damaged(folder, PLAN, "a unit has an invalid size")
    return plan


def read_planned_bytes(folder: Folder, run: Run) -> npt.NDArray[np.int64]:
    """Read only the planned text bytes of each unit."""
    name = table_name(folder, PLAN, run.plan_sha256)
    column = read_table(folder, name, run.plan_sha256, PLAN_SCHEMA, ["text_bytes"])["text_bytes"]
    if _is_impossible(column):
        raise damaged(folder, PLAN, "a unit has an invalid size")
    planned: npt.NDArray[np.int64] = column.to_numpy()
    return planned


def read_sources(folder: Folder, run: Run) -> pa.Table:
    """Read the sources of a run. Refuses unknown kinds."""
    sources = read_table(folder, table_name(folder, SOURCES, run.sources_sha256), run.sources_sha256, _SCHEMAS[SOURCES])
    kinds = set(sources["kind"].unique().to_pylist())
    if not kinds <= set(KINDS):
        raise damaged(folder, SOURCES, f"a source is of kind {min(kinds - set(KINDS))[:20]!r}")
    return sources


def check_tables(folder: Folder, run: Run) -> None:
    """Refuse a run whose plan or sources are missing or do not have as many rows as the run states."""
    _check_rows(folder, table_name(folder, PLAN, run.plan_sha256), run.units)
    _check_rows(folder, table_name(folder, SOURCES, run.sources_sha256), run.sources)


def _check_rows(folder: Folder, name: str, expected: int) -> None:
    """Compare a count of `run.json` with its table, before memory of that size is allocated."""
    try:
        size = folder.size(name)
    except StoreError:
        if folder.exists(name):
            raise
        raise lost(folder, name) from None
    tail = min(size, FOOTER_BYTES)  # a plan can have hundreds of megabytes, and the store can be remote
    try:
        rows = count_rows(pa.py_buffer(folder.read_at(name, size - tail, tail)), size)
    except MalformedDataError as damage:
        raise damaged(folder, name, str(damage)) from damage
    if rows != expected:
        raise damaged(folder, RUN, f"it states {expected} rows in {name}, which has {rows}")


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
        return read_listing(folder, run, skipped)
    committed = int(committed_units(folder, run.units).sum())
    raise IncompleteStore(
        f"the store {folder.root} is not complete",
        f"units        {committed:,} of {run.units:,} are committed",
        _completion_advice(folder),
    )


def _completion_advice(folder: Folder) -> str:
    holder = folder.lock_holder(LOCK)
    if holder is None:
        return "Run the same `tokenmill prepare` again to finish it."
    return f"Process {holder} is still writing it. Wait for it to end; `tokenmill status --watch` shows its progress."


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
        if pa.types.is_integer(field.type) and _is_impossible(manifest[field.name]):
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
    return s.unit, s.documents, s.tokens, s.text_bytes, s.skipped_rows, s.quarantined_rows, s.sha256, s.xxh3


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
    return pa.schema([MANIFEST_SCHEMA.field(name) for name in _MANIFEST_COLUMNS[run.format]])


def _check_manifest_run(folder: Folder, run: Run, manifest: pa.Table) -> None:
    """Refuse a manifest of another run. Manifests of format 5 do not name their run."""
    stated = (manifest.schema.metadata or {}).get(MANIFEST_RUN)
    if run.format < 6 or stated == manifest_run(run):
        return
    if stated is None:
        raise damaged(folder, MANIFEST, "it does not name the run that it belongs to")
    raise ForeignManifest(*damaged(folder, MANIFEST, f"it belongs to another run than {RUN}").args)


def _is_impossible(column: pa.ChunkedArray) -> bool:
    """Whether a count is negative or the sum is 2**62 or more."""
    counts = column.to_numpy()
    return bool((counts < 0).any()) or float(counts.sum(dtype=np.float64)) >= 2.0**62
