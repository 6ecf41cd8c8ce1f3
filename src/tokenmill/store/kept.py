"""Kept columns: values of the sources beside each part, one row for each document, as Parquet.

The file is published before its part. The summary of the part has the hash of the values, so the part commits both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from tokenmill.errors import CorruptStore, StoreError
from tokenmill.sources.plain_values import TEXT, TYPES
from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.storage.untrusted.tables import read_parquet
from tokenmill.store.layout import KEPT
from tokenmill.tokenizers.engines.protocol import text_buffers

if TYPE_CHECKING:
    from tokenmill.storage import Folder
    from tokenmill.store.part import PartSummary

# The values of a document may take this much on average, however well they are compressed.
MAX_DOCUMENT_BYTES = 4096


def kept_name(unit: int) -> str:
    """The name of the file with the kept columns of a unit."""
    return f"{KEPT}/{unit:08d}.parquet"


def content_hash(values: pa.Table) -> str:
    """XXH3 of the names, types and values. It does not depend on how they are written."""
    digest = xxhash.xxh3_128()
    for name, column in zip(values.column_names, values.columns, strict=True):
        array = column.combine_chunks()
        digest.update(msgspec.json.encode([name, str(array.type)]))
        digest.update(np.ascontiguousarray(array.is_null().to_numpy(zero_copy_only=False)).data)
        if array.type == TEXT:
            data, offsets = text_buffers(array.fill_null(""))
            digest.update(np.diff(offsets).data)
        else:
            data = array.fill_null(False if pa.types.is_boolean(array.type) else 0).to_numpy(zero_copy_only=False)
        digest.update(np.ascontiguousarray(data).data)
    return digest.hexdigest()


def publish_kept(folder: Folder, unit: int, values: pa.Table) -> None:
    """Publish the kept columns of a unit. The part has to follow."""
    sink = pa.BufferOutputStream()
    pq.write_table(values, sink, compression="zstd", write_statistics=False)
    with folder.publish(kept_name(unit), durable=False) as file:
        file.write(sink.getvalue())


def read_kept(folder: Folder, summary: PartSummary) -> pa.Table:
    """Read the kept columns of a part. Raises CorruptStore if they are not those that the part names."""
    name = kept_name(summary.unit)
    try:
        data = folder.buffer(name)
        names = pq.ParquetFile(pa.BufferReader(data)).schema_arrow.names
        values = read_parquet(data, optional=names, extra_bytes=MAX_DOCUMENT_BYTES * summary.documents)
        _check(values, summary)
    except (MalformedDataError, pa.ArrowException, OSError) as damage:
        raise _corrupt(folder, summary.unit, str(damage)) from damage
    except StoreError as error:
        if folder.exists(name):
            raise
        raise _corrupt(folder, summary.unit, "there is no such file") from error
    return values


def _check(values: pa.Table, summary: PartSummary) -> None:
    if len(values) != summary.documents:
        raise MalformedDataError(f"it has {len(values)} rows, and the part {summary.documents} documents")
    if not all(field.type in TYPES for field in values.schema) or content_hash(values) != summary.kept:
        raise MalformedDataError("its values are not those that the part was committed with")


def _corrupt(folder: Folder, unit: int, reason: str) -> CorruptStore:
    return CorruptStore(
        f"the kept columns of part {unit} are damaged",
        f"file         {folder.path(kept_name(unit))}",
        f"found        {reason}",
        "Run the same `tokenmill prepare` with --repair: it makes the damaged parts again, and no other.",
    )
