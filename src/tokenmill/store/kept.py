"""Kept columns: values of the sources beside each part, one row for each document, as Parquet.

The file is published before its part. The summary of the part has the hash of the values, so the part commits both.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from tokenmill.errors import CorruptStore, UsageError
from tokenmill.humanize import did_you_mean
from tokenmill.sources.plain_values import TEXT, TYPES
from tokenmill.sources.where import parse_where
from tokenmill.storage import Folder
from tokenmill.storage.arrow_text import text_buffers
from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.storage.untrusted.parquet_pages import read_parquet
from tokenmill.storage.untrusted.tables import describe
from tokenmill.store.chain import BASE, Head, reading
from tokenmill.store.layout import advice
from tokenmill.store.part import PartSummary

# The values of a document may take this much on average, however well they are compressed.
MAX_DOCUMENT_BYTES = 4096
# Columns that take more are written as they are: a reader refuses a file whose content is far larger than the file.
MAX_PACKED_BYTES = MAX_DOCUMENT_BYTES // 2


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


def nulled(values: pa.Table, changes: npt.NDArray[np.int64]) -> pa.Table:
    """Columns without the values of erased documents."""
    is_erased = pa.array(changes > 0)
    columns = {
        name: pc.if_else(is_erased, pa.scalar(None, column.type), column.combine_chunks())
        for name, column in zip(values.column_names, values.columns, strict=True)
    }
    return pa.table(columns, schema=values.schema)


def publish_kept(folder: Folder, name: str, values: pa.Table) -> None:
    """Publish the kept columns of a unit under their name. The part has to follow."""
    sink = pa.BufferOutputStream()
    is_packed = values.nbytes <= MAX_PACKED_BYTES * len(values)
    pq.write_table(
        values, sink, compression="zstd" if is_packed else "none", use_dictionary=is_packed, write_statistics=False
    )
    with folder.publish(name, durable=False) as file:
        file.write(sink.getvalue())


def read_kept(folder: Folder, summary: PartSummary, names: Collection[str], head: Head = BASE) -> pa.Table:
    """Read the kept columns of a part. Raises CorruptStore if they are not those that the part names.

    `names` are columns that the run names and the caller uses: the file must have them.
    """
    name = head.kept_file(summary.unit)
    values = read_kept_file(folder, summary.unit, summary.documents, names, name, head)
    if content_hash(values) != summary.kept:
        raise _corrupt(folder, summary.unit, name, "its values are not those that the part was committed with")
    return values


def read_kept_file(  # noqa: PLR0913, PLR0917 - a file, and what is known of it
    folder: Folder, unit: int, documents: int, names: Collection[str], name: str, head: Head = BASE
) -> pa.Table:
    """Read the kept columns of a unit by the name of their file. The values are not compared with the part."""
    with reading(folder, name, head, partial(_corrupt, folder, unit, name)):
        values = read_parquet(folder.buffer(name), optional=None, extra_bytes=MAX_DOCUMENT_BYTES * documents)
        _check(values, documents, names)
    return values


def check_where(text: str, kept_columns: tuple[str, ...], directory: str) -> str:
    """The canonical text of a condition on kept columns. Raises UsageError if a column is not kept."""
    where = parse_where(text)
    missing = [name for name in where.columns if name not in kept_columns]
    if missing:
        raise UsageError(
            f"the column {missing[0]!r} is not kept in the store",
            f"store        {directory}",
            f"where        {where}",
            f"kept columns {', '.join(kept_columns) or 'none'}",
            *did_you_mean(missing[0], kept_columns),
            "`tokenmill prepare --keep` keeps columns of the sources beside the tokens.",
        )
    return str(where)


def matching(folder: Folder, summary: PartSummary, where: str, head: Head = BASE) -> npt.NDArray[np.bool_]:
    """Whether the kept columns of each document of a part satisfy a condition."""
    parsed = parse_where(where)
    return parsed.matches(read_kept(folder, summary, parsed.columns, head))


def _check(values: pa.Table, documents: int, names: Collection[str]) -> None:
    missing = [name for name in names if values.column_names.count(name) != 1]
    if missing:
        raise MalformedDataError(f"the run keeps a column {missing[0][:100]!r}, and it has {describe(values.schema)}")
    if len(values) != documents:
        raise MalformedDataError(f"it has {len(values)} rows, and the part {documents} documents")
    if not all(field.type in TYPES for field in values.schema):
        raise MalformedDataError(f"it has {describe(values.schema)}")


def _corrupt(folder: Folder, unit: int, name: str, reason: str) -> CorruptStore:
    where = f"file         {folder.path(name)}"
    return CorruptStore(f"the kept columns of part {unit} are damaged", where, f"found        {reason}", *advice(name))
