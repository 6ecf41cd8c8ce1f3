"""Find the documents and rows in quarantine that a selector names, and what their units are without them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import xxhash

from tokenmill.erasure.erased_unit import Erased
from tokenmill.errors import SourceError
from tokenmill.executors.fan_out import FanOut
from tokenmill.pipeline.planning.freeze import FrozenRun
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.columns import unit_columns
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.pipeline.unit.plan import Position, UnitTask
from tokenmill.sources.missing_column import NoColumn
from tokenmill.storage import Folder, folder_at
from tokenmill.storage.untrusted.malformed import MalformedDataError, decode
from tokenmill.store import quarantine
from tokenmill.store.chain import DOCUMENTS_SCHEMA, ErasedRow, Head, StoreVersion, head_at
from tokenmill.store.deny import DenyList
from tokenmill.store.job import Job
from tokenmill.store.kept import content_hash, nulled, read_kept
from tokenmill.store.part import PartSummary, TokenArray, check_content, erased_changes, file_bytes, open_part
from tokenmill.store.part_ranges import open_ranged

Sources = npt.NDArray[np.uint32]
Rows = npt.NDArray[np.uint64]

Matched = dict[str, tuple[set[str], set[str]]]
"""The values and the hosts of each column that a selector matches."""


@dataclass(frozen=True, slots=True)
class FoundUnit:
    """What a selector matches in a unit.

    `documents` has a row for each document to erase. `file` is the hash, XXH3 and size of the part without them, and
    the hash of its kept columns; None if nothing changes. `rows` are the matched rows in quarantine, `named` all
    matched rows, each with the path of its source. `matched` has the matched values and hosts of each column. `missing`
    is set if no source of the unit has a column. `not_compared` rows in quarantine have text, but their columns are not
    known.
    """

    unit: int
    documents: pa.Table
    file: tuple[str, str, int, str] | None
    rows: list[tuple[str, int]]
    named: list[tuple[str, int]]
    matched: Matched
    matched_before: int = 0
    missing: NoColumn | None = None
    not_compared: int = 0


@dataclass(frozen=True, slots=True)
class _BadRows:
    """The rows in quarantine that a selector names, those of them to erase, and those that were erased before.

    `matched` has the values and hosts that matched, `not_compared` counts rows whose columns are not known.
    """

    named: list[tuple[str, int]]
    rows: list[tuple[str, int]]
    erased: list[tuple[str, int]]
    matched: Matched = field(default_factory=dict)
    not_compared: int = 0


_NO_BAD_ROWS = _BadRows([], [], [])


@dataclass
class Found:
    """What a selector matches in a store, collected from all units in order."""

    units: list[FoundUnit] = field(default_factory=list)
    matched: Matched = field(default_factory=dict)
    named: list[tuple[str, int]] = field(default_factory=list)
    matched_before: int = 0
    not_compared: int = 0

    @property
    def documents(self) -> pa.Table:
        """A row for each document to erase."""
        return pa.concat_tables(
            [DOCUMENTS_SCHEMA.empty_table(), *(unit.documents for unit in self.units)]
        ).combine_chunks()

    @property
    def rows(self) -> tuple[ErasedRow, ...]:
        """The rows in quarantine to erase."""
        return tuple(ErasedRow(unit.unit, file, row) for unit in self.units for file, row in unit.rows)

    def add(self, unit: FoundUnit) -> None:
        """Add what one unit has."""
        _add_matched(self.matched, unit.matched)
        self.named += unit.named
        self.matched_before += unit.matched_before
        self.not_compared += unit.not_compared
        if unit.file is not None:
            self.units.append(unit)


def _add_matched(matched: Matched, more: Matched) -> None:
    for column, (values, hosts) in more.items():
        known = matched.setdefault(column, (set(), set()))
        known[0].update(values)
        known[1].update(hosts)


def find(  # noqa: PLR0913, PLR0917 - a store, what is looked for, and what looks for it
    folder: Folder,
    frozen: FrozenRun,
    rules: DenyList,
    tokens: npt.NDArray[np.int64],
    limits: WorkerLimits,
    fan_out: FanOut,
) -> Found:
    """Find what a selector names. `tokens` are those of each unit. Nothing is written."""
    run = frozen.run
    function = FindDocuments(folder.root, frozen.head.version, run.job, rules, run.erased_token, limits)
    units = np.arange(run.units) if rules.columns else _units_of(frozen, rules)
    fan_out.begin("find", int(tokens[units].sum()))
    found, results, missing, exists = Found(), dict[int, FoundUnit](), list[NoColumn](), not rules.columns
    tasks = plan.tasks(frozen.plan, frozen.sources, units.tolist())
    for done in fan_out.run(function, tasks, lambda task: f"unit {task.unit}"):
        results[done.item.unit] = done.value
        missing += [] if done.value.missing is None else [done.value.missing]
        exists |= done.value.missing is None
        fan_out.advance(int(tokens[done.item.unit]))
    if missing and not exists:
        raise missing[0]
    for unit in sorted(results):
        found.add(results[unit])
    return found


def _units_of(frozen: FrozenRun, rules: DenyList) -> npt.NDArray[np.int64]:
    """The units with sources that the rules name."""
    is_named = [bool(rules.sources_at(path)) for path in frozen.sources["path"].to_pylist()]
    first, count = (frozen.plan[name].to_numpy().astype(np.int64) for name in ("source", "sources"))
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_named)])
    return np.flatnonzero(before[first + count] > before[first])


@dataclass(frozen=True, slots=True)
class FindDocuments:
    """The function that finds the documents of a unit. Columns are the kept ones, or else read from the sources.

    `version` is that of the store, `token` replaces the tokens of a document.
    """

    directory: str
    version: StoreVersion
    job: Job
    selector: DenyList
    token: int
    limits: WorkerLimits

    def __call__(self, task: UnitTask) -> FoundUnit:
        """What the selector matches in the unit. The tokens of the part are read only if something is found."""
        folder = folder_at(self.directory)
        Position("read").mark()
        summary, source, row = _origins(folder, task.unit, self._head)
        is_named = self._rows(task, source, row)
        matched: Matched = {}
        missing = None
        if self.selector.columns:
            values, missing = self._columns(folder, task, summary, (source, row))
            is_named |= self.selector.matches(values)
            matched = self.selector.matched(values)
        named = _paths(task, source[is_named], row[is_named])
        bad = self._quarantined(folder, task, summary) if summary.quarantined_rows else _NO_BAD_ROWS
        _add_matched(matched, bad.matched)
        before = erased_changes(summary)
        is_new = is_named if before is None else is_named & (before == 0)
        documents, file = DOCUMENTS_SCHEMA.empty_table(), None
        if is_new.any() or bad.rows:
            documents, file = self._without(folder, task.unit, np.flatnonzero(is_new), bad)
        return FoundUnit(
            unit=task.unit,
            documents=documents,
            file=file,
            rows=bad.rows,
            named=named + bad.named,
            matched=matched,
            matched_before=int(is_named.sum()) - len(documents),
            missing=missing,
            not_compared=bad.not_compared,
        )

    @property
    def _head(self) -> Head:
        return head_at(self.directory, self.version)

    def _without(
        self, folder: Folder, unit: int, documents: npt.NDArray[np.int64], bad: _BadRows
    ) -> tuple[pa.Table, tuple[str, str, int, str]]:
        """A row for each of these documents, and the part without them."""
        summary, content = open_part(folder, unit, self._head)
        check_content(folder, summary, content)
        changes = np.zeros(summary.documents, np.int64) if content.erased is None else content.erased.copy()
        changes[documents] = self.version.number + 1
        kept = ""
        if summary.kept:
            kept = content_hash(nulled(read_kept(folder, summary, (), self._head), changes))
        erased = Erased(changes, frozenset([*bad.erased, *bad.rows]), self.token)
        after, replaced = erased.part(summary, content, kept)
        origins: list[Any] = [content.source[documents], content.row[documents]]
        hashes = [document_xxh3(content.document(index)) for index in documents.tolist()]
        tokens = np.diff(content.offsets)[documents]
        columns = [np.full(len(documents), unit), documents, *origins, tokens, hashes]
        table = pa.table(columns, schema=DOCUMENTS_SCHEMA)
        return table, (after.blake3, after.xxh3, file_bytes(after, replaced), kept)

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
        others = tuple(name for name in names if name not in self.job.keep)
        columns = {}
        missing = None
        if len(others) < len(names):
            kept_names = [name for name in names if name not in others]
            kept = read_kept(folder, summary, kept_names, self._head)
            columns = {name: kept[name] for name in kept_names}
        if others:
            options = self.limits.read_options(self.job)
            found = unit_columns(task, others, *origins, options)
            missing = None if found.exists else found.missing
            columns |= {name: found.values[name] for name in others}
        return pa.table({name: columns[name] for name in names}), missing

    def _quarantined(self, folder: Folder, task: UnitTask, summary: PartSummary) -> _BadRows:
        """The rows in quarantine that the selector names. Their columns are in the sources, or in their text."""
        listed = quarantine.read_entries(folder, quarantine.unit_file(summary))
        entries = {(entry.file, entry.position): entry for entry in listed}
        erased = [name for name, entry in entries.items() if entry.detail == quarantine.ERASED]
        index_of = {file.path: file.index for file in task.files}
        origins = sorted((index_of[path], row, path) for path, row in entries if path in index_of)
        source, row = (
            np.array([origin[i] for origin in origins], kind) for i, kind in enumerate((np.uint32, np.uint64))
        )
        is_named = self._rows(task, source, row)
        names = self.selector.columns
        matched: Matched = {}
        not_compared = 0
        if names and origins:
            values = self._of_bad_rows(task, source, row)
            if values is None:
                texts = [entries[path, number] for _, number, path in origins]
                values, is_known = _text_columns(texts, names)
                pairs = zip(is_known, texts, strict=True)
                not_compared = sum(not known and bool(text.text or text.base64) for known, text in pairs)
            is_named |= self.selector.matches(values)
            matched = self.selector.matched(values)
        named = _paths(task, source[is_named], row[is_named])
        rows = [one for one in named if one not in set(erased)]
        return _BadRows(named, rows, erased, matched, not_compared)

    def _of_bad_rows(self, task: UnitTask, source: Sources, row: Rows) -> pa.Table | None:
        """The columns of rows in quarantine. None if the sources are gone, or are a store, which does not have them."""
        if self.job.source_store is not None:
            return None
        try:
            return unit_columns(task, self.selector.columns, source, row, self.limits.read_options(self.job)).values
        except SourceError:
            if not set(self.selector.columns) <= set(self.job.keep):
                raise
            return None


def document_xxh3(tokens: TokenArray) -> str:
    """XXH3 (128 bits) of the tokens of a document."""
    return xxhash.xxh3_128_hexdigest(np.ascontiguousarray(tokens).view(np.uint8).data)


def _origins(folder: Folder, unit: int, head: Head) -> tuple[PartSummary, Sources, Rows]:
    """The summary of a part, and the source and row of each document. From an object store no token is fetched."""
    if folder.is_remote:
        part = open_ranged(folder, unit, head)
        return part.summary, part.source, part.row
    summary, content = open_part(folder, unit, head)
    return summary, content.source, content.row


def _paths(task: UnitTask, source: Sources, row: Rows) -> list[tuple[str, int]]:
    return [(task.file(number).path, int(index)) for number, index in zip(source.tolist(), row.tolist(), strict=True)]


def _text_columns(entries: list[quarantine.Quarantined], names: tuple[str, ...]) -> tuple[pa.Table, list[bool]]:
    """Columns of rows in quarantine whose text is a JSON object, as text, and which rows have one."""
    objects: list[dict[str, Any] | None] = []
    for entry in entries:
        try:
            objects.append(decode((entry.text or "").encode(errors="replace"), dict[str, Any]))
        except MalformedDataError:
            objects.append(None)
    columns = {name: pa.array([_as_text((found or {}).get(name)) for found in objects], pa.string()) for name in names}
    return pa.table(columns), [found is not None for found in objects]


def _as_text(value: Any) -> str | None:
    """A JSON value as the text that selectors compare: 5.0 is 5."""
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return msgspec.json.encode(value).decode()
