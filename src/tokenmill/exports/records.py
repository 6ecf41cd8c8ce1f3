"""The records and the manifest of an export. The record of a shard commits it, and lists the origin of its documents.

A record is an Arrow IPC file with the columns `length`, `source` and `row`, one row for each document or part of one,
in order. Counts and checksums are in the metadata of its schema.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.exports.documents import DocumentTable
from tokenmill.exports.file_checks import EXPORT_AGAIN, damaged, publish_checked, read_checked
from tokenmill.exports.job import MANIFESTS, PLAN, RECORDS, manifest_file, manifest_numbers
from tokenmill.exports.shards import SCHEMA as PLAN_SCHEMA
from tokenmill.storage import AlreadyPublishedError, Folder
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.storage.untrusted.tables import read_batch, read_schema
from tokenmill.store import tables
from tokenmill.store.chain import StoreVersion
from tokenmill.store.layout import numbered_files
from tokenmill.token_files.protocol import ShardRecord, WrittenFile

# Metadata keys of a record: the ShardRecord as JSON, and its checksum.
_RECORD_KEY = b"tokenmill.shard"
_RECORD_CHECKSUM_KEY = b"tokenmill.shard.xxh3"

# Metadata keys of the manifest: the files that belong to no shard, the versions of the stores, and the checksum of the
# table.
OTHERS_KEY = b"tokenmill.others"
_VERSIONS_KEY = b"tokenmill.versions"
_CHECKSUM_KEY = b"tokenmill.manifest"

# Counts above this are damage.
_MAX_COUNT = 1 << 62

SCHEMA = pa.schema(
    [
        pa.field("length", pa.int64(), nullable=False),
        pa.field("source", pa.uint32(), nullable=False),
        pa.field("row", pa.uint64(), nullable=False),
    ]
)

# A row of the manifest is the record of a shard without its documents.
MANIFEST_SCHEMA = pa.schema(
    [
        ("shard", pa.int64()),
        ("split", pa.string()),
        ("number", pa.int64()),
        ("start", pa.int64()),
        ("documents", pa.int64()),
        ("begun", pa.int64()),
        ("cut", pa.int64()),
        ("tokens", pa.int64()),
        ("documents_xxh3", pa.string()),
        ("long_documents", pa.int64()),
        ("long_tokens", pa.int64()),
        ("files", pa.list_(pa.struct([("name", pa.string()), ("bytes", pa.int64()), ("xxh3", pa.string())]))),
    ]
)


@dataclass(frozen=True, slots=True)
class ExportManifest:
    """A numbered manifest of a complete export: a row for each shard, and the files that belong to no shard.

    `versions` are those of the stores: the checksums are of files without documents that were erased until then. After
    an erasure the manifest is published first, and the files follow.
    """

    number: int
    rows: pa.Table
    others: list[WrittenFile]
    versions: tuple[StoreVersion, ...]

    @property
    def files(self) -> dict[int, tuple[WrittenFile, ...]]:
        """The files of each shard."""
        pairs = zip(self.rows["shard"].to_pylist(), self.rows["files"].to_pylist(), strict=True)
        return {shard: tuple(WrittenFile(**file) for file in files) for shard, files in pairs}

    def records(self, export: str) -> list[ShardRecord]:
        """The records of the shards of the export with this digest."""
        return [msgspec.convert({**row, "export": export}, ShardRecord) for row in self.rows.to_pylist()]

    def with_files(
        self, files: Mapping[int, Sequence[WrittenFile]], versions: tuple[StoreVersion, ...]
    ) -> ExportManifest:
        """The next manifest, with other files of some shards, at these versions."""
        after = {shard: msgspec.to_builtins(list(some)) for shard, some in files.items()}
        rows = [row | {"files": after.get(row["shard"], row["files"])} for row in self.rows.to_pylist()]
        return ExportManifest(self.number + 1, pa.Table.from_pylist(rows, MANIFEST_SCHEMA), self.others, versions)


def manifest_rows(records: Sequence[ShardRecord]) -> pa.Table:
    """Return the rows of a manifest: the records without their documents."""
    return pa.Table.from_pylist([msgspec.to_builtins(record) for record in records], MANIFEST_SCHEMA)


def publish_next(folder: Folder, manifest: ExportManifest, export: str) -> None:
    """Publish the next manifest of the export with this digest. The first one completes it. None is replaced.

    Does nothing if another process has published that number.
    """
    metadata = {_VERSIONS_KEY: msgspec.json.encode(manifest.versions), OTHERS_KEY: msgspec.json.encode(manifest.others)}
    table = manifest.rows.replace_schema_metadata(metadata)
    folder.create(MANIFESTS)
    name = manifest_file(manifest.number)
    with contextlib.suppress(AlreadyPublishedError):
        publish_checked(folder, name, table, _CHECKSUM_KEY, export, if_absent=True)


def read_manifest(folder: Folder, export: str) -> ExportManifest:
    """Read the last manifest of a complete export, which must have this digest."""
    number = manifest_numbers(folder)[-1]
    name = manifest_file(number)
    table = read_checked(folder, name, MANIFEST_SCHEMA, _CHECKSUM_KEY, export)
    files = table["files"].combine_chunks().flatten()
    sizes = pc.struct_field(files, "bytes")
    if any(pc.struct_field(files, name).null_count for name in ("name", "bytes", "xxh3")) or files.null_count:
        raise damaged(folder, name, "it names a file without a name, size or checksum")
    if len(files) and (pc.min(sizes).as_py() < 0 or pc.sum(sizes.cast(pa.float64())).as_py() > _MAX_COUNT):
        raise damaged(folder, name, "it names a file with an invalid size")
    metadata = table.schema.metadata or {}
    try:
        others = decode(metadata.get(OTHERS_KEY, b""), list[WrittenFile])
        versions = decode(metadata.get(_VERSIONS_KEY, b""), tuple[StoreVersion, ...])
    except MalformedDataError as damage:
        raise damaged(folder, name, str(damage)) from damage
    if any(not 0 <= file.bytes <= _MAX_COUNT for file in others):
        raise damaged(folder, name, "a file has no size")
    return ExportManifest(number, table, others, versions)


def exists(folder: Folder, shard: int) -> bool:
    """Return whether a shard is committed."""
    return folder.exists(_name(shard))


def committed(folder: Folder, shards: int) -> npt.NDArray[np.bool_]:
    """Return which shards have a record. This lists the directory once."""
    return numbered_files(folder, RECORDS, "arrow", shards)


def publish(folder: Folder, record: ShardRecord, origins: DocumentTable) -> None:
    """Commit a shard. Its files must be published already."""
    data = msgspec.json.encode(record)
    schema = SCHEMA.with_metadata({_RECORD_KEY: data, _RECORD_CHECKSUM_KEY: xxhash.xxh3_128_hexdigest(data)})
    columns = [pa.array(column) for column in (origins.lengths, origins.source, origins.row)]
    with folder.publish(_name(record.shard), durable=False) as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))


def discard(folder: Folder, shard: int) -> None:
    """Remove the record of a shard, so that the shard is written again."""
    folder.discard(_name(shard))


def read(folder: Folder, shard: int) -> ShardRecord:
    """Read the counts and checksums of a shard."""
    try:
        return _record(shard, read_schema(_buffer(folder, shard)))
    except MalformedDataError as damage:
        raise corrupt(folder, shard, str(damage)) from damage


def _buffer(folder: Folder, shard: int) -> pa.Buffer:
    try:
        return folder.buffer(_name(shard))
    except StoreError as error:
        if folder.exists(_name(shard)):
            raise
        headline = f"the record of shard {shard} is gone"
        raise CorruptStore(headline, f"export       {folder.root}", EXPORT_AGAIN) from error


def _record(shard: int, schema: pa.Schema) -> ShardRecord:
    metadata: dict[bytes, bytes] = schema.metadata or {}
    data = metadata.get(_RECORD_KEY, b"")
    if metadata.get(_RECORD_CHECKSUM_KEY, b"").decode(errors="replace") != xxhash.xxh3_128_hexdigest(data):
        raise MalformedDataError("its counts are not those that its checksum was taken of")
    record = decode(data, ShardRecord)
    _check(shard, record)
    return record


def _check(shard: int, record: ShardRecord) -> None:
    counts = [record.number, record.start, record.documents, record.tokens, record.begun, record.cut]
    counts += [record.long_documents, record.long_tokens]
    counts += [file.bytes for file in record.files]
    if record.shard != shard or not record.files or record.split not in ("train", "val"):
        raise MalformedDataError(f"it is of shard {record.shard}")
    if min(counts) < 0 or max(counts) > _MAX_COUNT:
        raise MalformedDataError("it has negative or impossible counts")


def read_origins(folder: Folder, shard: int) -> DocumentTable:
    """Read the length and origin of each document, or part of one, in a shard."""
    return read_whole(folder, shard)[1]


def read_whole(folder: Folder, shard: int) -> tuple[ShardRecord, DocumentTable]:
    """Read the counts and checksums of a shard, and the length and origin of each document, or part of one."""
    try:
        schema, batch = read_batch(_buffer(folder, shard), SCHEMA)
        record = _record(shard, schema)
    except MalformedDataError as damage:
        raise corrupt(folder, shard, str(damage)) from damage
    origins = DocumentTable(*(np.asarray(batch.column(name).to_numpy()) for name in SCHEMA.names))
    if documents_xxh3(origins) != record.documents_xxh3:
        raise corrupt(folder, shard, "its documents are not those that its checksum was taken of")
    if bool((origins.lengths < 0).any()):
        raise corrupt(folder, shard, "a document has less than no tokens")
    return record, origins


def documents_xxh3(origins: DocumentTable) -> str:
    """Return the checksum (XXH3, 128 bits) of the documents of a record."""
    digest = xxhash.xxh3_128()
    for column in (origins.lengths, origins.source, origins.row):
        digest.update(np.ascontiguousarray(column, column.dtype.newbyteorder("<")).view(np.uint8).data)
    return digest.hexdigest()


def read_lengths(folder: Folder, shard: int) -> npt.NDArray[np.int64]:
    """Read the lengths of a shard's documents."""
    return read_origins(folder, shard).lengths


def _name(shard: int) -> str:
    return f"{RECORDS}/{shard:08d}.arrow"


def corrupt(folder: Folder, shard: int, reason: str) -> CorruptStore:
    """Return the error for a record with invalid content."""
    return CorruptStore(
        f"the record of shard {shard} is damaged",
        f"file         {folder.path(_name(shard))}",
        f"found        {reason}",
        "Delete the file and export again: only this shard is written again.",
    )


def progress_of(export: Folder) -> str:
    """Return how many shards an export has that is not complete."""
    if not export.exists(PLAN):
        return "not planned yet"
    shards = len(tables.read_table(export, PLAN, schema=PLAN_SCHEMA))
    return f"{committed(export, shards).sum():,} of {shards:,} shards"
