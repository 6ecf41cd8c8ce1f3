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

from tokenmill.errors import CorruptStore
from tokenmill.exports.job import RECORDS
from tokenmill.exports.streams import Origins
from tokenmill.formats.format import ShardRecord, Written
from tokenmill.layout import numbered_files
from tokenmill.storage import Folder

_KEY = b"tokenmill.shard"
_OTHERS = b"tokenmill.others"

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


def manifest(records: Sequence[ShardRecord], others: Sequence[Written]) -> pa.Table:
    """The manifest of an export: its records, and in the metadata the files that belong to no shard."""
    table = pa.Table.from_pylist([msgspec.to_builtins(record) for record in records], MANIFEST_SCHEMA)
    return table.replace_schema_metadata({_OTHERS: msgspec.json.encode(others)})


def read_others(manifest: pa.Table) -> list[Written]:
    """The files of an export that belong to no shard."""
    return msgspec.json.decode(manifest.schema.metadata[_OTHERS], type=list[Written])


def exists(folder: Folder, shard: int) -> bool:
    """Whether a shard is committed."""
    return folder.exists(_name(shard))


def committed(folder: Folder, shards: int) -> npt.NDArray[np.bool_]:
    """Which shards have a record, by listing the records once."""
    return numbered_files(folder, RECORDS, "arrow", shards)


def publish(folder: Folder, record: ShardRecord, origins: Origins) -> None:
    """Commit a shard whose files are published."""
    schema = SCHEMA.with_metadata({_KEY: msgspec.json.encode(record)})
    columns = [pa.array(column) for column in (origins.lengths, origins.source, origins.row)]
    with folder.publish(_name(record.shard), settled=False) as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(pa.record_batch(columns, schema=schema))


def discard(folder: Folder, shard: int) -> None:
    """Take back the commit of a shard."""
    folder.discard(_name(shard))


def read(folder: Folder, shard: int) -> ShardRecord:
    """The counts and checksums of a shard."""
    try:
        with pa.ipc.open_file(folder.map(_name(shard))) as reader:
            metadata: dict[bytes, Any] = reader.schema.metadata or {}
            record = msgspec.json.decode(metadata[_KEY], type=ShardRecord)
    except (pa.ArrowInvalid, OSError, KeyError, msgspec.MsgspecError) as error:
        raise _corrupt(folder, shard, str(error)) from error
    if record.shard != shard:
        raise _corrupt(folder, shard, f"it is of shard {record.shard}")
    return record


def read_lengths(folder: Folder, shard: int) -> npt.NDArray[np.int64]:
    """The lengths of a shard's documents."""
    try:
        with pa.ipc.open_file(folder.map(_name(shard))) as reader:
            return np.asarray(reader.get_batch(0).column("length").to_numpy())
    except (pa.ArrowInvalid, OSError, KeyError) as error:
        raise _corrupt(folder, shard, str(error)) from error


def _name(shard: int) -> str:
    return f"{RECORDS}/{shard:08d}.arrow"


def _corrupt(folder: Folder, shard: int, reason: str) -> CorruptStore:
    return CorruptStore(
        f"the record of shard {shard} is damaged",
        f"file         {folder.path(_name(shard))}",
        f"found        {reason}",
        "Delete the file and export again: only this shard is done anew.",
    )
