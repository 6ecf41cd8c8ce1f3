"""A unit of a store that is a source: its documents, its kept columns, and the rows that it lacks.

The run has the sources and the plan of that store, so its units are the parts of that store. The files that the store
was made from are not read. Runs in a worker.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.pipeline.unit.plan import UnitTask
from tokenmill.sources import read_columns
from tokenmill.sources.documents import FILTERED, Columns, Documents, ReadOptions, RowArray, Slice, SourceFile
from tokenmill.sources.missing_column import NoColumn
from tokenmill.sources.selection import parse_cached
from tokenmill.sources.token_source import StoreInput, TokenInput
from tokenmill.storage import folder_at
from tokenmill.storage.arrow_text import binary_array
from tokenmill.store import quarantine
from tokenmill.store.chain import StoreVersion
from tokenmill.store.job import Job
from tokenmill.store.listed_parts import ListedStore
from tokenmill.store.part import (
    ERASED,
    PartContent,
    PartSummary,
    SkippedRow,
    TokenArray,
    open_part,
    read_summary,
)


@dataclass(frozen=True, slots=True)
class StoreUnit:
    """The documents of a part of a store that are not erased, and the source and row of those that are."""

    store: StoreInput
    dtype: str
    unit: int
    content: PartContent
    erased: tuple[npt.NDArray[np.uint32], RowArray]

    def documents(self, file: SourceFile, options: ReadOptions) -> Iterator[Documents]:
        """The documents of a file that satisfy the filter, with their frame. The first batch lists erased rows."""
        first, last = _documents_of(self.content.source, file)
        rows = self.content.row[first:last]
        source, row = self.erased
        erased = row[slice(*_documents_of(source, file))]
        if len(erased):
            skipped = {ERASED: np.setdiff1d(erased, rows)}
            yield Documents(pa.array([], pa.large_binary()), rows[:0], skipped=skipped)
        is_match = np.ones(last - first, np.bool_)
        if options.where and first < last:
            where = parse_cached(options.where)
            is_match = where.matches(_values(self.store, self.dtype, self.unit, file, where.columns).values)
        for start, stop in self._batches(first, last, options.batch_bytes):
            part = self.content.slice(start, stop)
            documents = Documents(_as_binary(part.tokens, part.offsets), part.row, trained=part.train)
            chosen = is_match[start - first : stop - first]
            if not chosen.all():
                skipped = {FILTERED: np.unique(documents.rows[~chosen])}
                documents = replace(documents.filter(chosen), skipped=skipped)
            yield documents

    def _batches(self, first: int, last: int, batch_bytes: int) -> Iterator[tuple[int, int]]:
        offsets, most = self.content.offsets, batch_bytes // self.content.tokens.itemsize
        while first < last:
            stop = int(np.searchsorted(offsets, offsets[first] + most, side="right")) - 1
            stop = min(last, max(stop, first + 1))
            yield first, stop
            first = stop


def open_unit(tokens: TokenInput | None, unit: int) -> StoreUnit | None:
    """Open the part of a unit, whose columns are compared with their checksum. None if files are read."""
    if tokens is None or tokens.store is None:
        return None
    store = listed(tokens.store)
    summary, content = store.open(unit, tokens.dtype, content_too=True)
    source, row = content.source[:0], content.row[:0]
    if summary.erased:
        _, whole = open_part(folder_at(store.directory), unit, store.head)
        if whole.erased is not None:
            source, row = whole.source[whole.erased > 0], whole.row[whole.erased > 0]
    return StoreUnit(tokens.store, tokens.dtype, unit, content, (source, row))


def unit_columns_of(
    task: UnitTask, file: SourceFile, file_slice: Slice | None, names: tuple[str, ...], options: ReadOptions
) -> Iterator[Columns]:
    """The values of some columns of a file in a unit: read from the file, or kept in the store that is the source."""
    if options.tokens is None or options.store is None:
        yield from read_columns(file, file_slice, names, options)
    else:
        yield _values(options.store, options.tokens.dtype, task.unit, file, names)


def rows_before(job: Job, unit: int) -> tuple[SkippedRow, ...]:
    """The rows of a unit that the store has left out that is the source."""
    return () if job.source_store is None else _summary(job.source_store, unit).skipped


def quarantined_before(job: Job, unit: int) -> list[quarantine.Quarantined]:
    """The rows of a unit in the quarantine of the store that is the source."""
    if job.source_store is None:
        return []
    summary, folder = _summary(job.source_store, unit), folder_at(job.source_store.directory)
    return quarantine.read_entries(folder, quarantine.unit_file(summary)) if summary.quarantined_rows else []


def _summary(source: StoreInput, unit: int) -> PartSummary:
    store = listed(source)
    return read_summary(folder_at(store.directory), unit, store.head)


def listed(store: StoreInput) -> ListedStore:
    """A store as it was when it became the source, without its erased documents."""
    version = StoreVersion(store.changes, store.claim)
    return ListedStore(
        store.directory, store.digest, version, store.units, store.sources, "", store.changes, kept_columns=store.keep
    )


@functools.lru_cache(maxsize=1)
def _kept(source: StoreInput, dtype: str, unit: int) -> tuple[npt.NDArray[np.uint32], RowArray, pa.Table | None]:
    """The source, the row and the kept columns of each document of a unit. A unit may have thousands of files."""
    store = listed(source)
    _, content = store.open(unit, dtype, content_too=False)
    return content.source, content.row, store.kept(unit, dtype)[1]


def _values(store: StoreInput, dtype: str, unit: int, file: SourceFile, names: tuple[str, ...]) -> Columns:
    """The kept columns of the documents of a file. Raises NoColumn if one is not kept."""
    source, row, table = _kept(store, dtype, unit)
    missing = [name for name in names if table is None or name not in table.column_names]
    if missing or table is None:
        raise NoColumn(
            f"the column {missing[0]!r} is not kept in the store",
            f"store        {store.directory}",
            f"kept columns {', '.join(store.keep) or 'none'}",
        )
    first, last = _documents_of(source, file)
    return Columns(row[first:last], table.select(names).slice(first, last - first))


def _documents_of(source: npt.NDArray[np.uint32], file: SourceFile) -> tuple[int, int]:
    first, last = np.searchsorted(source, [file.index, file.index + 1]).tolist()
    return first, last


def _as_binary(tokens: TokenArray, offsets: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
    """Documents as binary values. Their tokens are not copied."""
    data = np.ascontiguousarray(tokens[offsets[0] : offsets[-1]]).view(np.uint8)
    return binary_array(data, (offsets - offsets[0]) * tokens.itemsize)
