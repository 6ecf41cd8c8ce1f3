"""Kept columns: values of the sources beside each part, one row for each document, as Parquet.

The file is published before its part. The summary of the part has the hash of the values, so the part commits both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from tokenmill.errors import CorruptStore, StoreError, UsageError
from tokenmill.humanize import did_you_mean
from tokenmill.sources.plain_values import TEXT, TYPES
from tokenmill.sources.where import parse_where
from tokenmill.storage.untrusted.malformed import MalformedDataError
from tokenmill.storage.untrusted.tables import describe, read_parquet
from tokenmill.store.layout import KEPT
from tokenmill.tokenizers.engines.protocol import text_buffers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from tokenmill.storage import Folder
    from tokenmill.store.part import PartSummary

# The values of a document may take this much on average, however well they are compressed.
MAX_DOCUMENT_BYTES = 4096
# Columns that take more are written as they are: a reader refuses a file whose content is far larger than the file.
MAX_PACKED_BYTES = MAX_DOCUMENT_BYTES // 2


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


def nulled(values: pa.Table, changes: npt.NDArray[np.int64]) -> pa.Table:
    """Columns without the values of erased documents."""
    is_erased = pa.array(changes > 0)
    columns = {
        name: pc.if_else(is_erased, pa.scalar(None, column.type), column.combine_chunks())
        for name, column in zip(values.column_names, values.columns, strict=True)
    }
    return pa.table(columns, schema=values.schema)


def publish_kept(folder: Folder, unit: int, values: pa.Table, *, durable: bool = False) -> None:
    """Publish the kept columns of a unit. The part has to follow."""
    sink = pa.BufferOutputStream()
    is_packed = values.nbytes <= MAX_PACKED_BYTES * len(values)
    pq.write_table(
        values, sink, compression="zstd" if is_packed else "none", use_dictionary=is_packed, write_statistics=False
    )
    with folder.publish(kept_name(unit), durable=durable) as file:
        file.write(sink.getvalue())


def read_kept(
    folder: Folder,
    summary: PartSummary,
    names: Collection[str],
    replaced_hash: Callable[[pa.Table], str] | None = None,
) -> pa.Table:
    """Read the kept columns of a part. Raises CorruptStore if they are not those that the part names.

    `names` are columns that the run names and the caller uses: the file must have them. `replaced_hash` is given while
    values of some documents are removed from the columns. The columns may have been replaced already: they are accepted
    if that changes nothing, which is all that can be known of them then. Columns that were restored from a copy are
    accepted, too, if the part names what they become.
    """
    name = kept_name(summary.unit)
    try:
        data = folder.buffer(name)
        values = read_parquet(data, optional=None, extra_bytes=MAX_DOCUMENT_BYTES * summary.documents)
        _check(values, summary, names, replaced_hash)
    except (MalformedDataError, pa.ArrowException, OSError) as damage:
        raise _corrupt(folder, summary.unit, str(damage)) from damage
    except StoreError as error:
        if folder.exists(name):
            raise
        raise _corrupt(folder, summary.unit, "there is no such file") from error
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


def matching(folder: Folder, summary: PartSummary, where: str) -> npt.NDArray[np.bool_]:
    """Whether the kept columns of each document of a part satisfy a condition."""
    parsed = parse_where(where)
    return parsed.matches(read_kept(folder, summary, parsed.columns))


def _check(
    values: pa.Table, summary: PartSummary, names: Collection[str], replaced_hash: Callable[[pa.Table], str] | None
) -> None:
    missing = [name for name in names if values.column_names.count(name) != 1]
    if missing:
        raise MalformedDataError(f"the run keeps a column {missing[0][:100]!r}, and it has {describe(values.schema)}")
    if len(values) != summary.documents:
        raise MalformedDataError(f"it has {len(values)} rows, and the part {summary.documents} documents")
    is_plain = all(field.type in TYPES for field in values.schema)
    actual = content_hash(values) if is_plain else ""
    is_replaced = is_plain and replaced_hash is not None and replaced_hash(values) in (actual, summary.kept)
    if not is_plain or (actual != summary.kept and not is_replaced):
        raise MalformedDataError("its values are not those that the part was committed with")


def _corrupt(folder: Folder, unit: int, reason: str) -> CorruptStore:
    return CorruptStore(
        f"the kept columns of part {unit} are damaged",
        f"file         {folder.path(kept_name(unit))}",
        f"found        {reason}",
        "Run the same `tokenmill prepare` with --repair: it makes the damaged parts again, and no other.",
    )
