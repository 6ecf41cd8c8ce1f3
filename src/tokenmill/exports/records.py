"""The record of a shard: its existence commits the shard. It says what was written, and where each document is from.

An Arrow IPC file with the columns `length`, `source` and `row`, one row for each document or piece of one, in order,
and the counts and checksums in the schema's metadata.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.exports.documents import DocumentTable
from tokenmill.exports.file_checks import EXPORT_AGAIN, WRITE_AGAIN, damaged, publish_checked, read_checked
from tokenmill.exports.formats.protocol import ShardRecord, WrittenFile
from tokenmill.exports.job import MANIFEST, RECORDS
from tokenmill.storage import Folder
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.storage.untrusted.tables import read_batch, read_schema
from tokenmill.store.layout import numbered_files

_KEY = b"tokenmill.shard"
_CHECKSUM = b"tokenmill.shard.xxh3"
_OTHERS = b"tokenmill.others"
_CHECKSUM_KEY = b"tokenmill.manifest"
_MAX_BYTES = 1 << 62

SCHEMA = pa.schema(
    [
        pa.field("length", pa.int64(), nullable=False),
        pa.field("source", pa.uint32(), nullable=False),
        pa.field("row", pa.uint64(), nullable=False),
    ]
)

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
        ("files", pa.list_(pa.struct([("name", pa.string()), ("bytes", pa.int64()), ("xxh3", pa.string())]))),
    ]
)
"""The columns of an export's manifest: a shard's record without its documents."""


def manifest(records: Sequence[ShardRecord], others: Sequence[WrittenFile]) -> pa.Table:
    """The manifest of an export: its records, and in the metadata the files that belong to no shard."""
    table = pa.Table.from_pylist([msgspec.to_builtins(record) for record in records], MANIFEST_SCHEMA)
    return table.replace_schema_metadata({_OTHERS: msgspec.json.encode(others)})


def publish_manifest(folder: Folder, table: pa.Table, export: str) -> None:
    """Publish the manifest of the export with this digest: from now on it is complete."""
    publish_checked(folder, MANIFEST, table, _CHECKSUM_KEY, export)


def read_manifest(folder: Folder, export: str) -> pa.Table:
    """The manifest of a complete export, which must be the export with this digest."""
    table = read_checked(folder, MANIFEST, MANIFEST_SCHEMA, _CHECKSUM_KEY, export)
    files = table["files"].combine_chunks().flatten()
    sizes = pc.struct_field(files, "bytes")
    if any(pc.struct_field(files, name).null_count for name in ("name", "bytes", "xxh3")) or files.null_count:
        raise damaged(folder, MANIFEST, "it names a file that is none")
    if len(files) and (pc.min(sizes).as_py() < 0 or pc.sum(sizes.cast(pa.float64())).as_py() > _MAX_BYTES):
        raise damaged(folder, MANIFEST, "it names a file with a size that is none")
    return table


def read_others(manifest: pa.Table) -> list[WrittenFile]:
    """The files of an export that belong to no shard."""
    try:
        others = decode((manifest.schema.metadata or {}).get(_OTHERS, b""), list[WrittenFile])
    except MalformedDataError as damage:
        raise CorruptStore("the manifest of an export is damaged", f"reason       {damage}", WRITE_AGAIN) from damage
    if any(not 0 <= file.bytes <= _MAX_BYTES for file in others):
        raise CorruptStore("the manifest of an export is damaged", "reason       a file has no size", WRITE_AGAIN)
    return others


def exists(folder: Folder, shard: int) -> bool:
    """Whether a shard is committed."""
    return folder.exists(_name(shard))


def committed(folder: Folder, shards: int) -> npt.NDArray[np.bool_]:
    """Which shards have a record, by listing the records once."""
    return numbered_files(folder, RECORDS, "arrow", shards)


def publish(folder: Folder, record: ShardRecord, origins: DocumentTable) -> None:
    """Commit a shard whose files are published."""
    data = msgspec.json.encode(record)
    schema = SCHEMA.with_metadata({_KEY: data, _CHECKSUM: xxhash.xxh3_128_hexdigest(data)})
    columns = [pa.array(column) for column in (origins.lengths, origins.source, origins.row)]
    with folder.publish(_name(record.shard), durable=False) as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))


def discard(folder: Folder, shard: int) -> None:
    """Take back the commit of a shard."""
    folder.discard(_name(shard))


def read(folder: Folder, shard: int) -> ShardRecord:
    """The counts and checksums of a shard."""
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
    data = metadata.get(_KEY, b"")
    if metadata.get(_CHECKSUM, b"").decode(errors="replace") != xxhash.xxh3_128_hexdigest(data):
        raise MalformedDataError("its counts are not those that its checksum was taken of")
    record = decode(data, ShardRecord)
    _check(shard, record)
    return record


def _check(shard: int, record: ShardRecord) -> None:
    counts = [record.number, record.start, record.documents, record.tokens, record.begun, record.cut]
    counts += [file.bytes for file in record.files]
    if record.shard != shard or not record.files or record.split not in ("train", "val"):
        raise MalformedDataError(f"it is of shard {record.shard}")
    if min(counts) < 0 or max(counts) > _MAX_BYTES:
        raise MalformedDataError("its counts are none")


def read_origins(folder: Folder, shard: int) -> DocumentTable:
    """The documents of a shard, or pieces of them: how long each is, and where it is from."""
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
    return origins


def documents_xxh3(origins: DocumentTable) -> str:
    """The checksum (XXH3, 128 bits) of the documents of a record."""
    digest = xxhash.xxh3_128()
    for column in (origins.lengths, origins.source, origins.row):
        digest.update(np.ascontiguousarray(column, column.dtype.newbyteorder("<")).view(np.uint8).data)
    return digest.hexdigest()


def read_lengths(folder: Folder, shard: int) -> npt.NDArray[np.int64]:
    """The lengths of a shard's documents."""
    return read_origins(folder, shard).lengths


def _name(shard: int) -> str:
    return f"{RECORDS}/{shard:08d}.arrow"


def corrupt(folder: Folder, shard: int, reason: str) -> CorruptStore:
    """The error for a record that does not hold what it should."""
    return CorruptStore(
        f"the record of shard {shard} is damaged",
        f"file         {folder.path(_name(shard))}",
        f"found        {reason}",
        "Delete the file and export again: only this shard is done anew.",
    )
