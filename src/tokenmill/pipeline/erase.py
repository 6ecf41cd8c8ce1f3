"""Erase documents of a store: find and freeze them, then change parts, quarantine and manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import sha256

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tokenmill.executors.fan_out import FanOut
from tokenmill.pipeline.erase_selector import Selector, not_found
from tokenmill.pipeline.erase_units import EraseUnit, FindDocuments, FoundUnit, IsErased, UnitErasure, has_erased
from tokenmill.pipeline.planning.freeze import FrozenRun
from tokenmill.pipeline.unit import plan
from tokenmill.pipeline.unit.documents import WorkerLimits
from tokenmill.sources.missing_column import NoColumn
from tokenmill.storage import Folder, publish_new
from tokenmill.store import layout, quarantine, tables
from tokenmill.store.deny import DenyList
from tokenmill.store.erasing import ErasingMark, publish_mark
from tokenmill.store.erasures import (
    DOCUMENTS_FILE,
    DOCUMENTS_SCHEMA,
    FILES_FILE,
    FILES_SCHEMA,
    REQUEST_FILE,
    ErasedRow,
    ErasureRecord,
    changed_files,
    erased_documents,
    erasure_file,
    read_record,
    refuse_earlier_parts,
)
from tokenmill.store.job import LATEST_STORE_FORMAT, Run, StoreChange
from tokenmill.store.manifest import parts_digest, publish_manifest, read_manifest
from tokenmill.store.part import part_name, read_summary
from tokenmill.store.run import require_run, run_record


@dataclass
class Found:
    """What a selector matches in a store, collected from all units in order."""

    units: list[FoundUnit] = field(default_factory=list)
    matched: dict[str, tuple[set[str], set[str]]] = field(default_factory=dict)
    named: list[tuple[str, int]] = field(default_factory=list)
    matched_before: int = 0
    not_compared: int = 0

    @property
    def documents(self) -> int:
        """The number of documents to erase."""
        return sum(len(unit.documents) for unit in self.units)

    @property
    def tokens(self) -> int:
        """The tokens of these documents."""
        return sum(int(unit.documents["tokens"].to_numpy().sum()) for unit in self.units)

    @property
    def rows(self) -> list[ErasedRow]:
        """The rows in quarantine to erase."""
        return [ErasedRow(unit.unit, file, row) for unit in self.units for file, row in unit.rows]

    def add(self, unit: FoundUnit) -> None:
        """Add what one unit has."""
        for column, (values, hosts) in unit.matched.items():
            known = self.matched.setdefault(column, (set(), set()))
            known[0].update(values)
            known[1].update(hosts)
        self.named += unit.named
        self.matched_before += unit.matched_before
        self.not_compared += unit.not_compared
        if len(unit.documents) or unit.rows:
            self.units.append(unit)

    def documents_table(self) -> pa.Table:
        """A row for each document to erase."""
        return pa.concat_tables(
            [DOCUMENTS_SCHEMA.empty_table(), *(unit.documents for unit in self.units)]
        ).combine_chunks()

    def files_table(self) -> pa.Table:
        """A row for each file that changes."""
        files = [file for unit in self.units for file in unit.files]
        return pa.Table.from_pylist([dict(zip(FILES_SCHEMA.names, file, strict=True)) for file in files], FILES_SCHEMA)


def find(  # noqa: PLR0913, PLR0917 - a store, what is looked for, and what looks for it
    folder: Folder, frozen: FrozenRun, rules: DenyList, manifest: pa.Table, limits: WorkerLimits, fan_out: FanOut
) -> Found:
    """Find the documents and rows in quarantine that a selector names. Nothing is written."""
    run = frozen.run
    function = FindDocuments(folder.root, run.job, rules, run.erased_token, len(run.history) + 1, limits)
    units = np.arange(run.units) if rules.columns else _units_of(frozen, rules)
    tokens = manifest["tokens"].to_numpy()
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


def _units_of(frozen: FrozenRun, rules: DenyList) -> np.ndarray:
    """The units with sources that the rules name."""
    is_named = [bool(rules.sources_at(path)) for path in frozen.sources["path"].to_pylist()]
    first, count = (frozen.plan[name].to_numpy().astype(np.int64) for name in ("source", "sources"))
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(is_named)])
    return np.flatnonzero(before[first + count] > before[first])


def freeze_erasure(  # noqa: PLR0913, PLR0917 - the request, and what was found for it
    folder: Folder, manifest: pa.Table, selector: Selector, found: Found, request: str, reason: str, time: str
) -> ErasureRecord:
    """Publish the documents and files of an erasure, and its record last.

    In an object store another process may have frozen the same request. Its record is returned then: that process may
    have erased documents while this one looked for them.
    """
    frozen = read_record(folder, request)
    if frozen is not None:
        return frozen
    folder.create(erasure_file(request, "."))
    documents, files = (tables.table_bytes(table) for table in (found.documents_table(), found.files_table()))
    change = StoreChange(
        request=request,
        before=parts_digest(manifest),
        documents=found.documents,
        tokens=found.tokens,
        sha256=sha256(documents).hexdigest(),
    )
    for name, data in ((DOCUMENTS_FILE, documents), (FILES_FILE, files)):
        publish_file(folder, request, layout.table_name(folder, name, sha256(data).hexdigest()), data)
    record = ErasureRecord(
        request=request,
        reason=reason,
        time=time,
        selector=selector.options,
        selector_sha256=selector.sha256,
        change=change if found.documents else None,
        files_sha256=sha256(files).hexdigest(),
        matched_before=found.matched_before,
        quarantined=found.rows,
        not_found=not_found(selector.rules(), found.matched, found.named),
        not_compared=found.not_compared,
    )
    if publish_new(folder, erasure_file(request, REQUEST_FILE), layout.json_bytes(record)):
        return record
    return read_record(folder, request) or record


def publish_file(folder: Folder, request: str, name: str, data: bytes) -> None:
    """Publish a file of an erasure."""
    with folder.publish(erasure_file(request, name)) as file:
        file.write(data)


def is_erased(folder: Folder, run: Run, record: ErasureRecord, fan_out: FanOut) -> bool:
    """Whether the documents of a complete erasure are still erased. Files that were restored may have them again.

    Rows in quarantine are not compared: to erase them again takes no longer.
    """
    change = record.change
    if change is None or record.quarantined:
        return not record.quarantined
    digest = parts_digest(read_manifest(folder, run))
    if digest == change.before:
        return False
    earlier = run.history[: run.history.index(change)]
    if digest in [one.before for one in earlier]:
        refuse_earlier_parts(folder, run, digest)
    items = list(_items(folder, record))
    fan_out.begin("check", change.tokens)
    is_whole = True
    for done in fan_out.run(IsErased(folder.root, len(earlier) + 1), items, lambda item: f"part {item.unit}"):
        is_whole &= done.value
        fan_out.advance(change.tokens // len(items))
    return is_whole


def is_in_parts(folder: Folder, run: Run, record: ErasureRecord) -> bool:
    """Whether the parts have an erasure that the run does not list, as its next one. An older run was restored then."""
    number = len(run.history) + 1
    return all(has_erased(read_summary(folder, item.unit), item, number) for item in _items(folder, record))


def erase_in_store(folder: Folder, run: Run, record: ErasureRecord, fan_out: FanOut) -> Run:
    """Change the parts, kept columns, quarantine and manifest; return the run as it is then. May be repeated."""
    change = record.change
    if change is not None and change not in run.history:
        run = msgspec.structs.replace(run, format=LATEST_STORE_FORMAT, changes=(*run.history, change))
        layout.publish_json(folder, layout.RUN, run_record(run))
    items = list(_items(folder, record))
    sizes = {unit: folder.size(part_name(unit)) for unit in (item.unit for item in items)}
    fan_out.begin("erase", sum(sizes.values()) // fan_out.token_bytes)
    number = run.history.index(change) + 1 if change is not None else 0
    results: list[tuple[int, str, str, int]] = []
    for done in fan_out.run(EraseUnit(folder.root, run.erased_token, number), items, lambda item: f"part {item.unit}"):
        results.append(done.value)
        fan_out.advance(sizes[done.item.unit] // fan_out.token_bytes)
    manifest = read_manifest(folder, run)
    if items and int(manifest["quarantined"].to_numpy().sum()):
        quarantine.gather(folder, np.ones(run.units, np.bool_))
    if change is not None:
        replaced = _with_parts(manifest, results)
        # In a bucket another process may have finished this erasure, and a later one may have changed the parts.
        if not replaced.equals(manifest) and require_run(folder).history == run.history:
            publish_manifest(folder, run, replaced)
    return run


def mark_store(folder: Folder, record: ErasureRecord) -> None:
    """Mark the store, so that readers refuse it until the erasure is complete."""
    command = f"tokenmill erase {folder.root} --request {record.request}"
    publish_mark(folder, ErasingMark(f"the erasure {record.request}", command, record.request))


def _items(folder: Folder, record: ErasureRecord) -> Iterator[UnitErasure]:
    """What is to be done in each unit, in order."""
    rows: dict[int, list[tuple[str, int]]] = {}
    for entry in record.quarantined:
        rows.setdefault(entry.unit, []).append((entry.file, entry.row))
    if record.change is not None:
        documents = erased_documents(folder.root, record.change)
        files = changed_files(folder, record).to_pylist()
        checksums = {file["name"]: (file["before"], file["after"]) for file in files}
        units, starts = np.unique(documents["unit"].to_numpy(), return_index=True)
        numbers = np.split(documents["document"].to_numpy(), starts[1:])
        for unit, indices in zip(units.tolist(), numbers, strict=True):
            yield UnitErasure(unit, indices, tuple(rows.pop(unit, ())), *checksums[part_name(unit)])
    for unit, erased in sorted(rows.items()):
        yield UnitErasure(unit, np.empty(0, np.int64), tuple(erased))


def _with_parts(manifest: pa.Table, parts: list[tuple[int, str, str, int]]) -> pa.Table:
    """The manifest with the checksums and sizes of the parts that were replaced."""
    parts = sorted(parts)
    mask = np.zeros(len(manifest), np.bool_)
    mask[[unit for unit, *_ in parts]] = True
    for index, name in enumerate(("sha256", "xxh3", "bytes"), 1):
        column = manifest[name].combine_chunks()
        values = pa.array([part[index] for part in parts], column.type)
        position = manifest.schema.get_field_index(name)
        manifest = manifest.set_column(position, manifest.field(position), pc.replace_with_mask(column, mask, values))
    return manifest
