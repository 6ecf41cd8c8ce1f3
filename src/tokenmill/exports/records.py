"""The record of a shard: its existence commits the shard. It says what was written, and where each document is from.

An Arrow IPC file with the columns `length`, `source` and `row`, one row for each document or piece of one, in order,
and the counts and checksums in the schema's metadata.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.errors import CorruptStore
from tokenmill.exports.documents import DocumentTable
from tokenmill.exports.formats.protocol import ShardRecord, WrittenFile
from tokenmill.exports.job import MANIFEST, RECORDS
from tokenmill.storage import Folder
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.storage.untrusted.tables import read_batch, read_schema
from tokenmill.store import layout
from tokenmill.store.layout import numbered_files

_KEY = b"tokenmill.shard"
_OTHERS = b"tokenmill.others"
_MAX_BYTES = 1 << 62
_ANEW = "Remove the export's directory and export again."

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
        ("files", pa.list_(pa.struct([("name", pa.string()), ("bytes", pa.int64()), ("xxh3", pa.string())]))),
    ]
)
"""The columns of an export's manifest: a shard's record without its documents."""


def manifest(records: Sequence[ShardRecord], others: Sequence[WrittenFile]) -> pa.Table:
    """The manifest of an export: its records, and in the metadata the files that belong to no shard."""
    table = pa.Table.from_pylist([msgspec.to_builtins(record) for record in records], MANIFEST_SCHEMA)
    return table.replace_schema_metadata({_OTHERS: msgspec.json.encode(others)})


def read_manifest(folder: Folder) -> pa.Table:
    """The manifest of a complete export."""
    table = layout.read_table(folder, MANIFEST, schema=MANIFEST_SCHEMA)
    files = table["files"].combine_chunks().flatten()
    sizes = pc.struct_field(files, "bytes")
    if any(pc.struct_field(files, name).null_count for name in ("name", "bytes", "xxh3")) or files.null_count:
        raise layout.damaged(folder, MANIFEST, "it names a file that is none")
    if len(files) and (pc.min(sizes).as_py() < 0 or pc.sum(sizes.cast(pa.float64())).as_py() > _MAX_BYTES):
        raise layout.damaged(folder, MANIFEST, "it names a file with a size that is none")
    return table


def read_others(manifest: pa.Table) -> list[WrittenFile]:
    """The files of an export that belong to no shard."""
    try:
        others = decode((manifest.schema.metadata or {}).get(_OTHERS, b""), list[WrittenFile])
    except MalformedDataError as damage:
        raise CorruptStore("the manifest of an export is damaged", f"reason       {damage}", _ANEW) from damage
    if any(not 0 <= file.bytes <= _MAX_BYTES for file in others):
        raise CorruptStore("the manifest of an export is damaged", "reason       a file has no size", _ANEW)
    return others


def exists(folder: Folder, shard: int) -> bool:
    """Whether a shard is committed."""
    return folder.exists(_name(shard))


def committed(folder: Folder, shards: int) -> npt.NDArray[np.bool_]:
    """Which shards have a record, by listing the records once."""
    return numbered_files(folder, RECORDS, "arrow", shards)


def publish(folder: Folder, record: ShardRecord, origins: DocumentTable) -> None:
    """Commit a shard whose files are published."""
    schema = SCHEMA.with_metadata({_KEY: msgspec.json.encode(record)})
    columns = [pa.array(column) for column in (origins.lengths, origins.source, origins.row)]
    with folder.publish(_name(record.shard), durable=False) as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))


def discard(folder: Folder, shard: int) -> None:
    """Take back the commit of a shard."""
    folder.discard(_name(shard))


def read(folder: Folder, shard: int) -> ShardRecord:
    """The counts and checksums of a shard."""
    try:
        metadata: dict[bytes, Any] = read_schema(folder.buffer(_name(shard))).metadata or {}
        record = decode(metadata.get(_KEY, b""), ShardRecord)
        _check(shard, record)
    except MalformedDataError as damage:
        raise _corrupt(folder, shard, str(damage)) from damage
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
        _, batch = read_batch(folder.buffer(_name(shard)), SCHEMA)
    except MalformedDataError as damage:
        raise _corrupt(folder, shard, str(damage)) from damage
    lengths = np.asarray(batch.column("length").to_numpy())
    if bool((lengths < 0).any()):
        raise _corrupt(folder, shard, "a document has less than no tokens")
    return DocumentTable(lengths, *(np.asarray(batch.column(name).to_numpy()) for name in ("source", "row")))


def read_lengths(folder: Folder, shard: int) -> npt.NDArray[np.int64]:
    """The lengths of a shard's documents."""
    return read_origins(folder, shard).lengths


def _name(shard: int) -> str:
    return f"{RECORDS}/{shard:08d}.arrow"


def _corrupt(folder: Folder, shard: int, reason: str) -> CorruptStore:
    return CorruptStore(
        f"the record of shard {shard} is damaged",
        f"file         {folder.path(_name(shard))}",
        f"found        {reason}",
        "Delete the file and export again: only this shard is done anew.",
    )
