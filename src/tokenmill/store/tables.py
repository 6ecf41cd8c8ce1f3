"""The tables of a run: plan, sources and manifest. Their schemas, and how they are read, published and checked.

A manifest states its run and its counts. A store reads one that states them wrong as damaged.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tokenmill.errors import CorruptStore
from tokenmill.sources import KINDS
from tokenmill.storage import Folder
from tokenmill.storage.digest import Hasher, canonical, hash_of
from tokenmill.storage.untrusted.parquet_pages import count_rows, read_parquet
from tokenmill.store.job import Run
from tokenmill.store.layout import MANIFEST, PLAN, RUN, SOURCES, damaged, errors_of, table_name

FOOTER_BYTES = 1 << 20
"""The bytes read from the end of a table. The footers of plan and sources are smaller."""

PLAN_SCHEMA = pa.schema(
    [
        ("source", pa.uint32()),  # the first source of the unit
        ("sources", pa.uint32()),  # the number of consecutive sources in it
        ("start", pa.int64()),  # the slice of a single source; null if the unit consists of whole sources
        ("stop", pa.int64()),
        ("text_bytes", pa.int64()),  # an estimate, made without reading the text
        ("rows", pa.int64()),  # null if the rows cannot be counted without reading
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
        ("spelled", pa.int64()),  # documents found to spell a control token, of those that are searched
        ("trained", pa.int64()),  # tokens that are trained on; null if all are
        ("blake3", pa.string()),
        ("xxh3", pa.string()),
        ("bytes", pa.int64()),  # the size of the part's file
    ]
)

CHECKSUM_COLUMNS = ("blake3", "xxh3")

SOURCES_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("kind", pa.dictionary(pa.int32(), pa.string())),
        ("size", pa.int64()),
        ("fingerprint", pa.string()),
        ("identity", pa.uint64()),
    ]
)

SPLIT_SOURCES_SCHEMA = SOURCES_SCHEMA.insert(4, pa.field("split", pa.dictionary(pa.int32(), pa.string())))
"""The schema if a source has a split. The others have none there."""

SOURCES_SCHEMAS = tuple(
    schema
    for base in (SOURCES_SCHEMA, SPLIT_SOURCES_SCHEMA)
    for schema in (base, base.append(pa.field("head", pa.int64())))
)
"""The schemas of sources. Those of files of tokens without an index have `head` (see `SourceFile`)."""

_SCHEMAS = {PLAN: PLAN_SCHEMA, SOURCES: SOURCES_SCHEMA, MANIFEST: MANIFEST_SCHEMA}

OPTIONAL = ("start", "stop", "rows", "split", "trained")
"""The columns that may be null."""

MANIFEST_RUN = b"tokenmill.run"
"""The metadata key under which the manifest names its run (see `manifest_run`)."""

MANIFEST_ROWS = b"tokenmill.rows"
"""The metadata key of the checksum of the manifest's rows: its counts are used before any part is opened."""

COUNT_COLUMNS = ("documents", "tokens", "text_bytes", "skipped", "quarantined")


class ForeignManifest(CorruptStore):
    """The manifest names another run than `run.json`."""


def table_bytes(table: pa.Table) -> bytes:
    """Encode a table as Parquet."""
    sink, is_manifest = pa.BufferOutputStream(), table.schema.equals(MANIFEST_SCHEMA)
    # Checksums never repeat. With a dictionary of them, a reader would have to compare them all to measure it.
    names = [name for name in table.column_names if name not in CHECKSUM_COLUMNS]
    pq.write_table(table, sink, compression="zstd", use_dictionary=names if is_manifest else True)
    return bytes(sink.getvalue())


def publish_table(folder: Folder, name: str, table: pa.Table, *, if_absent: bool = False) -> None:
    """Publish a table as Parquet. With `if_absent`, raise AlreadyPublishedError if there is a file."""
    with folder.publish(name, if_absent=if_absent) as file:
        file.write(table_bytes(table))


def read_table(
    folder: Folder,
    name: str,
    blake3: str | None = None,
    schema: pa.Schema | tuple[pa.Schema, ...] | None = None,
    wanted: Collection[str] | None = None,
) -> pa.Table:
    """Read and check a table that `publish_table` wrote.

    Args:
        folder: The directory.
        name: The name of the file.
        blake3: The expected hash, if the run states one.
        schema: The expected schema, or several of them; by default the schema of the table with this name.
        wanted: The columns to read; by default all.
    """
    with errors_of(folder, name, may_be_absent=blake3 is None):
        data = folder.buffer(name)
        if blake3 is not None and hash_of(data) != blake3:
            raise damaged(folder, name, f"it is not the file that {RUN} names")
        return read_parquet(data, schema or _SCHEMAS.get(name), OPTIONAL, wanted)


def parts_digest(manifest: pa.Table) -> str:
    """The hash of the checksums of all parts."""
    digest = Hasher()
    for checksums in manifest["blake3"].chunks:
        if len(checksums):  # the texts are one after the other in memory: millions are hashed at once
            _, offsets, texts = checksums.buffers()
            edges = np.frombuffer(offsets, np.int32)[checksums.offset : checksums.offset + len(checksums) + 1]
            digest.update(memoryview(texts)[edges[0] : edges[-1]])
    return digest.hexdigest()


def read_plan(folder: Folder, run: Run) -> pa.Table:
    """Read the whole plan of a run, which can have more units. Refuses units with unknown sources or invalid sizes."""
    plan = _read_plan_columns(folder, run, PLAN_SCHEMA.names)
    source, sources = (plan[name].to_numpy().astype(np.int64) for name in ("source", "sources"))
    slices = [plan[name].fill_null(0).to_numpy() for name in ("start", "stop", "text_bytes", "rows")]
    if bool((source + sources > run.sources).any()) or bool((sources < 1).any()):
        raise damaged(folder, PLAN, f"a unit is not of the {run.sources} sources")
    if any(bool((column < 0).any()) for column in slices) or has_impossible_counts(plan["text_bytes"]):
        raise damaged(folder, PLAN, "a unit has an invalid size")
    return plan


def read_planned_bytes(folder: Folder, run: Run) -> npt.NDArray[np.int64]:
    """Read only the planned text bytes of each unit."""
    column = _read_plan_columns(folder, run, ["text_bytes"])["text_bytes"]
    if has_impossible_counts(column):
        raise damaged(folder, PLAN, "a unit has an invalid size")
    return np.asarray(column.to_numpy()[: run.units])


def _read_plan_columns(folder: Folder, run: Run, columns: list[str]) -> pa.Table:
    name = table_name(folder, PLAN, run.plan_blake3)
    return read_table(folder, name, run.plan_blake3, PLAN_SCHEMA, columns)


def read_sources(folder: Folder, run: Run) -> pa.Table:
    """Read the sources of a run. Refuses unknown kinds."""
    name = table_name(folder, SOURCES, run.sources_blake3)
    sources = read_table(folder, name, run.sources_blake3, SOURCES_SCHEMAS)
    kinds = set(sources["kind"].unique().to_pylist())
    if not kinds <= set(KINDS):
        raise damaged(folder, SOURCES, f"a source is of kind {min(kinds - set(KINDS))[:20]!r}")
    return sources


def check_tables(folder: Folder, run: Run) -> None:
    """Refuse a run whose plan or sources are missing or do not have as many rows as the run states."""
    _check_rows(folder, table_name(folder, PLAN, run.plan_blake3), run.planned_units)
    _check_rows(folder, table_name(folder, SOURCES, run.sources_blake3), run.sources)


def _check_rows(folder: Folder, name: str, expected: int) -> None:
    """Compare a count of `run.json` with its table, before memory of that size is allocated."""
    with errors_of(folder, name):
        size = folder.size(name)
        tail = min(size, FOOTER_BYTES)  # a plan can have hundreds of megabytes, and the store can be remote
        rows = count_rows(pa.py_buffer(folder.ranges.read_at(name, size - tail, tail)), size)
    if rows != expected:
        raise damaged(folder, RUN, f"it states {expected} rows in {name}, which has {rows}")


def has_impossible_counts(column: pa.ChunkedArray) -> bool:
    """Whether a count is negative or the sum is 2**62 or more."""
    counts = column.to_numpy()
    return bool((counts < 0).any()) or float(counts.sum(dtype=np.float64)) >= 2.0**62


def manifest_run(run: Run) -> bytes:
    """The identity of a run in its manifest: the job's digest, and the checksums of plan and sources."""
    return canonical({"job": run.job.digest(), "plan": run.plan_blake3, "sources": run.sources_blake3})


def log_run(run: Run) -> str:
    """The identity of a run in the lines of its log: the start of the hash of `manifest_run`."""
    return hash_of(manifest_run(run))[:16]


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
