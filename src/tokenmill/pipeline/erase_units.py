"""Find the documents of a unit that an erasure names, and erase them in its part. Runs in a worker."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from tokenmill.errors import SourceError
from tokenmill.pipeline.erase_quarantine import text_columns, without_text
from tokenmill.pipeline.erased_part import ErasedPart, Indices, erased_numbers, kept_columns, null_kept
from tokenmill.pipeline.unit.columns import unit_columns
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.pipeline.unit.plan import UnitTask
from tokenmill.pipeline.unit.position import Position
from tokenmill.sources.missing_column import NoColumn
from tokenmill.storage import Folder, folder_at
from tokenmill.store import quarantine
from tokenmill.store.deny import DenyList
from tokenmill.store.erasures import DOCUMENTS_SCHEMA
from tokenmill.store.job import Job
from tokenmill.store.kept import content_hash, read_kept
from tokenmill.store.part import (
    PartSummary,
    TokenArray,
    check_content,
    corrupt,
    erased_changes,
    open_part,
    part_name,
    read_summary,
)
from tokenmill.store.part_ranges import open_ranged

OTHER_PART = "it is not the part that the erasure was planned for"

Sources = npt.NDArray[np.uint32]
Rows = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class FoundUnit:
    """What a selector matches in a unit.

    `documents` has a row for each document to erase. `files` are the names, old and new checksums of the files that
    change. `rows` are the matched rows in quarantine, `named` all matched rows, each with the path of its source.
    `matched` has the matched values and hosts of each column. `missing` is set if no source of the unit has a column.
    `not_compared` rows in quarantine have text, but their columns are not known.
    """

    unit: int
    documents: pa.Table
    files: list[tuple[str, str, str]]
    rows: list[tuple[str, int]]
    named: list[tuple[str, int]]
    matched: dict[str, tuple[set[str], set[str]]]
    matched_before: int = 0
    missing: NoColumn | None = None
    not_compared: int = 0


@dataclass(frozen=True, slots=True)
class _BadRows:
    """The rows in quarantine that a selector names, the values and hosts that matched, and rows it cannot compare."""

    rows: list[tuple[str, int]]
    matched: dict[str, tuple[set[str], set[str]]] = field(default_factory=dict)
    not_compared: int = 0


_NO_BAD_ROWS = _BadRows([])


@dataclass(frozen=True, slots=True)
class FindDocuments:
    """The function that finds the documents of a unit. Columns are the kept ones, or else read from the sources."""

    directory: str
    job: Job
    selector: DenyList
    token: int
    change: int
    limits: WorkerLimits

    def __call__(self, task: UnitTask) -> FoundUnit:
        """What the selector matches in the unit. The tokens of the part are read only if a document is found."""
        folder = folder_at(self.directory)
        Position("read").mark()
        summary, source, row = _origins(folder, task.unit)
        is_named = self._rows(task, source, row)
        matched: dict[str, tuple[set[str], set[str]]] = {}
        missing = None
        if self.selector.columns:
            values, missing = self._columns(folder, task, summary, (source, row))
            is_named |= self.selector.matches(values)
            matched = self.selector.matched(values)
        named = _paths(task, source[is_named], row[is_named])
        bad = self._quarantined(folder, task, summary) if summary.quarantined_rows else _NO_BAD_ROWS
        for name, (more_values, more_hosts) in bad.matched.items():
            matched[name][0].update(more_values)
            matched[name][1].update(more_hosts)
        changes = erased_changes(summary)
        is_new = is_named if changes is None else is_named & (changes == 0)
        documents = np.flatnonzero(is_new)
        tokens, hashes, files = np.empty(0, np.int64), list[str](), list[tuple[str, str, str]]()
        if len(documents):
            summary, content = open_part(folder, task.unit)
            check_content(folder, summary, content)
            tokens = np.diff(content.offsets)[documents]
            hashes = [document_xxh3(content.document(index)) for index in documents.tolist()]
            files = ErasedPart.of(folder, summary, content, documents, self.change, self.token).files(summary)
        return FoundUnit(
            unit=task.unit,
            documents=pa.table(
                [np.full(len(documents), task.unit), documents, source[documents], row[documents], tokens, hashes],
                schema=DOCUMENTS_SCHEMA,
            ),
            files=files,
            rows=bad.rows,
            named=named + bad.rows,
            matched=matched,
            matched_before=int(is_named.sum()) - len(documents),
            missing=missing,
            not_compared=bad.not_compared,
        )

    def _rows(self, task: UnitTask, source: Sources, row: Rows) -> npt.NDArray[np.bool_]:
        """Which documents the selector names by their source and row."""
        is_named = np.zeros(len(row), np.bool_)
        for file in task.files if self.selector.rows else ():
            wanted = self.selector.rows_of(file.path)
            if len(wanted):
                is_named |= (source == file.index) & np.isin(row, wanted)
        return is_named

    def _columns(
        self, folder: Folder, task: UnitTask, summary: PartSummary, origins: tuple[Sources, Rows]
    ) -> tuple[pa.Table, NoColumn | None]:
        """The columns that the selector compares: the kept ones, and those of the sources."""
        names = self.selector.columns
        others = tuple(name for name in names if name not in self.job.kept_columns)
        columns = {}
        missing = None
        if len(others) < len(names):
            kept_names = [name for name in names if name not in others]
            kept = read_kept(folder, summary, kept_names)
            columns = {name: kept[name] for name in kept_names}
        if others:
            options = self.limits.read_options(self.job)
            found = unit_columns(task, others, *origins, options)
            missing = None if found.exists else found.missing
            columns |= {name: found.values[name] for name in others}
        return pa.table({name: columns[name] for name in names}), missing

    def _quarantined(self, folder: Folder, task: UnitTask, summary: PartSummary) -> _BadRows:
        """The rows in quarantine that the selector names. Their columns are in the sources, or in their text."""
        entries = {(entry.file, entry.position): entry for entry in quarantine.read_unit_file(folder, summary)}
        index_of = {file.path: file.index for file in task.files}
        origins = sorted((index_of[path], row, path) for path, row in entries if path in index_of)
        source, row = (
            np.array([origin[i] for origin in origins], kind) for i, kind in enumerate((np.uint32, np.uint64))
        )
        is_named = self._rows(task, source, row)
        names = self.selector.columns
        if not names or not origins:
            return _BadRows(_paths(task, source[is_named], row[is_named]))
        not_compared = 0
        try:
            values = unit_columns(task, names, source, row, self.limits.read_options(self.job)).values
        except SourceError:
            if not set(names) <= set(self.job.kept_columns):
                raise
            texts = [entries[path, number] for _, number, path in origins]
            values, is_known = text_columns(texts, names)
            not_compared = sum(not known and bool(e.text or e.base64) for known, e in zip(is_known, texts, strict=True))
        is_named |= self.selector.matches(values)
        return _BadRows(_paths(task, source[is_named], row[is_named]), self.selector.matched(values), not_compared)


def document_xxh3(tokens: TokenArray) -> str:
    """XXH3 (128 bits) of the tokens of a document."""
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(tokens).view(np.uint8).data)


def _origins(folder: Folder, unit: int) -> tuple[PartSummary, Sources, Rows]:
    """The summary of a part, and the source and row of each document. From an object store no token is fetched."""
    if folder.is_remote:
        part = open_ranged(folder, unit)
        return part.summary, part.source, part.row
    summary, content = open_part(folder, unit)
    return summary, content.source, content.row


def _paths(task: UnitTask, source: Sources, row: Rows) -> list[tuple[str, int]]:
    return [(task.file(number).path, int(index)) for number, index in zip(source.tolist(), row.tolist(), strict=True)]


@dataclass(frozen=True, slots=True)
class UnitErasure:
    """The documents of a unit to erase, its rows in quarantine, and the checksum of the new part.

    `before` and `after` are empty if no document is erased.
    """

    unit: int
    documents: Indices
    rows: tuple[tuple[str, int], ...]
    before: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class EraseUnit:
    """The function that erases documents and rows in quarantine of a unit. Repeating it changes nothing."""

    directory: str
    token: int
    change: int

    def __call__(self, item: UnitErasure) -> tuple[int, str, str, int]:
        """Return the unit, both checksums of the new part, and the size of its file."""
        folder = folder_at(self.directory)
        summary = read_summary(folder, item.unit)
        if item.after and summary.sha256 == item.before:
            summary, content = open_part(folder, item.unit)
            check_content(folder, summary, content)
            erased = ErasedPart.of(folder, summary, content, item.documents, self.change, self.token)
            if erased.summary.sha256 != item.after:
                raise corrupt(folder, item.unit, OTHER_PART)
            _republish(folder, summary, erased.summary, item.rows)
            erased.publish(folder)
            summary = erased.summary
        elif not has_erased(summary, item, self.change):
            raise corrupt(folder, item.unit, OTHER_PART)
        else:
            _republish(folder, summary, summary, item.rows)
            null_kept(folder, summary)
        return item.unit, summary.sha256, summary.xxh3, folder.size(part_name(item.unit))


@dataclass(frozen=True, slots=True)
class IsErased:
    """The function that tells whether the documents of a unit are still erased, in its part and its kept columns."""

    directory: str
    change: int

    def __call__(self, item: UnitErasure) -> bool:
        """Return whether they are. A part or columns that were restored from a copy have them again."""
        folder = folder_at(self.directory)
        summary = read_summary(folder, item.unit)
        if summary.sha256 == item.before:
            return False
        if isinstance(summary.kept, msgspec.UnsetType) or not has_erased(summary, item, self.change):
            return True  # damage is not the subject here
        return content_hash(kept_columns(folder, summary, erased_numbers(summary))) == summary.kept


def has_erased(summary: PartSummary, item: UnitErasure, change: int) -> bool:
    """Whether a part does not have the documents that a change erased. Later changes may have erased others."""
    return not item.after or bool((erased_numbers(summary)[item.documents] == change).all())


def _republish(folder: Folder, before: PartSummary, after: PartSummary, rows: Collection[tuple[str, int]]) -> None:
    """Publish the rows in quarantine of a part under its new name, without the text of erased rows."""
    if not before.quarantined_rows or (before.sha256 == after.sha256 and not rows):
        return
    is_there = folder.exists(quarantine.unit_file(before))  # not if only the part was restored from a copy
    entries = quarantine.read_unit_file(folder, before if is_there else after)
    quarantine.publish_unit_file(folder, after, list(without_text(entries, rows)))
