"""Read columns of a unit's sources, aligned with the documents of its part. Runs in a worker."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.pipeline.unit.documents import PREFETCH_FILES
from tokenmill.pipeline.unit.plan import Position, UnitTask
from tokenmill.pipeline.unit.store_unit import unit_columns_of
from tokenmill.sources import prefetch
from tokenmill.sources.documents import Columns, ReadOptions, RowArray, Slice, SourceFile
from tokenmill.sources.missing_column import NoColumn, check_first_lines
from tokenmill.sources.plain_values import TEXT, unify


@dataclass(slots=True)
class UnitColumns:
    """The values of some columns for each document of a part: null where a source or a row has none.

    `missing` is the error of the first source without one of the columns. `exists` is set if a source has them.
    """

    values: pa.Table
    missing: NoColumn | None = None
    exists: bool = False


@dataclass(slots=True)
class _Reader:
    """Collects the values of one file after the other."""

    names: tuple[str, ...]
    chunks: dict[str, list[pa.Array]] = field(default_factory=dict)
    missing: NoColumn | None = None
    exists: bool = False

    def add(self, task: UnitTask, file: SourceFile, rows: RowArray, options: ReadOptions) -> None:
        """Add the values of these rows of a file."""
        try:
            found = list(unit_columns_of(task, file, task.file_slice, self.names, options))
        except NoColumn as error:
            self.missing = self.missing or error
            found = []
        else:
            self._note(file, task.file_slice, found, options)
        for name in self.names:
            self.chunks.setdefault(name, []).append(_values_at(found, name, rows))

    def _note(self, file: SourceFile, file_slice: Slice | None, found: list[Columns], options: ReadOptions) -> None:
        """Note whether the file has the columns. A JSON Lines file may have a key in any line."""
        has_value = any(part.values[name].null_count < len(part.values) for part in found for name in self.names)
        if file.kind != "jsonl" or has_value or options.store is not None:
            self.exists |= any(len(part.rows) for part in found)
        elif file_slice is None or file_slice.start == 0:
            for name in self.names:
                self.missing = self.missing or check_first_lines(file, name)[1]

    def table(self) -> pa.Table:
        """The values of all files."""
        arrays = {name: unify(chunks) for name, chunks in self.chunks.items()}
        return pa.table({name: pa.chunked_array(arrays.get(name, []), _type(arrays.get(name))) for name in self.names})


def unit_columns(
    task: UnitTask, names: tuple[str, ...], source: npt.NDArray[np.uint32], row: RowArray, options: ReadOptions
) -> UnitColumns:
    """The values of columns of the sources for each document of a part, given by its source and row."""
    reader = _Reader(names)
    edges = np.searchsorted(source, [file.index for file in task.files] + [task.files[-1].index + 1]).tolist()
    pairs = zip(task.files, itertools.pairwise(edges), strict=True)
    needed = [(file, row[first:last]) for file, (first, last) in pairs if first < last]
    for index, (file, rows) in enumerate(needed):
        Position("read", file.index).mark()
        for next_file, _ in needed[index + 1 : index + 1 + PREFETCH_FILES] if options.store is None else ():
            prefetch(next_file, None, options)
        reader.add(task, file, rows, options)
    return UnitColumns(reader.table(), reader.missing, reader.exists)


def _values_at(found: list[Columns], name: str, rows: RowArray) -> pa.Array:
    """The values of these rows; null for a row that was not read."""
    known = np.concatenate([np.empty(0, np.uint64), *(part.rows for part in found)])
    if not len(known):
        return pa.nulls(len(rows), TEXT)
    columns = unify([chunk for part in found for chunk in part.values[name].chunks])
    values = pa.chunked_array(columns, _type(columns)).combine_chunks()
    indices = np.minimum(np.searchsorted(known, rows), len(known) - 1)
    return values.take(pa.array(indices, mask=known[indices] != rows))


def _type(arrays: list[pa.Array] | None) -> pa.DataType:
    return arrays[0].type if arrays else TEXT
