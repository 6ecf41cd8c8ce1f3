"""The kept columns that an export adds to its files: their types, and their values in these types."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.exports.job import FrozenExport
from tokenmill.sources.plain_values import as_type, unify
from tokenmill.storage import thread_map
from tokenmill.store.collection import Collection, check_kept
from tokenmill.store.member import Member
from tokenmill.token_files.protocol import COLUMN_TYPES, ExportedColumn

_TYPE_NAMES = {kind: name for name, kind in COLUMN_TYPES.items()}


def choose_columns(
    stores: Collection, names: Sequence[str], before: FrozenExport | None
) -> tuple[tuple[ExportedColumn, ...], int]:
    """The columns with their types, and the bytes of their values in all stores.

    All parts are read once, because the type of a column depends on all of its values. The types of the export `before`
    stay: an erasure may have removed the values that they depend on. Its bytes are not counted again. Raises UsageError
    for a column that no store keeps.
    """
    if not names:
        return (), 0
    check_kept(stores, names)
    if before is not None and [column.name for column in before.job.with_columns] == list(names):
        return before.job.with_columns, 0
    members = {member.directory: member for member in stores.members}  # a recipe may have a store more than once
    samples = {directory: _samples(member, names) for directory, member in members.items()}
    found = [sample for parts in samples.values() for sample, _ in parts]
    types = {name: unify([sample[name] for sample in found if name in sample] or [pa.nulls(0)]) for name in names}
    total = sum(size for member in stores.members for _, size in samples[member.directory])
    return tuple(ExportedColumn(name, _TYPE_NAMES[arrays[0].type]) for name, arrays in types.items()), total


def _samples(member: Member, names: Sequence[str]) -> list[tuple[dict[str, pa.Array], int]]:
    """Of each part, values that decide the type of each column that is kept, and the bytes of all values."""
    own = [name for name in names if name in member.run.job.keep]

    def read(unit: int) -> tuple[dict[str, pa.Array], int]:
        table = member.kept(unit).select(own)
        return {name: _sample(table[name].combine_chunks()) for name in own}, table.nbytes

    return list(thread_map(member.folder, read, range(len(member.manifest)))) if own else []


def _sample(values: pa.Array) -> pa.Array:
    """The smallest and the largest of whole numbers, which may not fit another type; of other values, one."""
    if pa.types.is_integer(values.type):
        return pa.array(pc.min_max(values).as_py().values(), values.type)
    return values.drop_null().slice(0, 1)


def conform(values: pa.Table | None, documents: int, columns: Sequence[ExportedColumn]) -> pa.Table:
    """The values of some documents in the types of an export. A column that the store does not keep is null."""
    arrays = {}
    for column in columns:
        kind = COLUMN_TYPES[column.type]
        if values is None or column.name not in values.column_names:
            arrays[column.name] = pa.nulls(documents, kind)
        else:
            arrays[column.name] = as_type(values[column.name].combine_chunks(), kind)
    return pa.table(arrays)
