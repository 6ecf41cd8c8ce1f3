"""A complete store as the source of another one, and what was erased in it after the other one was made."""

from __future__ import annotations

import os
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tokenmill.errors import SourceError, TokenmillError
from tokenmill.humanize import count
from tokenmill.sources import StoreGuard, kind_of
from tokenmill.sources.discovery import MIN_STORE_NAMES
from tokenmill.sources.token_source import StoreInput, TokenInput
from tokenmill.storage import Folder, absolute, folder_at, scheme
from tokenmill.storage.addresses import OBJECT_STORES
from tokenmill.store import quarantine, tables
from tokenmill.store.chain import (
    Head,
    StoreVersion,
    claimed_documents,
    of_unit,
    read_claim,
    read_head,
    require_version,
)
from tokenmill.store.job import Job, Run, require_run
from tokenmill.store.layout import RUN
from tokenmill.store.part import open_part
from tokenmill.store.state import Operation, enter


@dataclass(frozen=True, slots=True)
class SourceStore:
    """A complete store: its run, its sources and its plan, and how its documents are read."""

    folder: Folder
    run: Run
    sources: pa.Table
    plan: pa.Table
    input: StoreInput

    @property
    def job(self) -> Job:
        """The job of the store."""
        return self.run.job

    @property
    def tokens(self) -> TokenInput:
        """How its documents are read."""
        tokenizer, begin, end = self.job.tokenizer, self.job.begin, self.job.end
        return TokenInput(dtype=tokenizer.dtype, begin=begin, end=end, store=self.input)


def find_source_store(sources: list[str], out: str | None = None) -> SourceStore | None:
    """The store that is the only source; None if the sources are files.

    Raises SourceError for other sources beside it, and StoreError if it is not complete.
    """
    stores = [source for source in sources if is_store(source)]
    if not stores:
        return None
    if len(sources) > 1:
        raise SourceError(
            "a store is a source only by itself",
            f"given        {stores[0]}, and {count(len(sources) - 1, 'other source')}",
            "Prepare a store of each with the same tokenizer, --bos and --eot. They can be read together.",
        )
    if out is not None and absolute(stores[0]) == absolute(out):
        return None  # refused where the sources are looked for
    return open_source(folder_at(stores[0]))


def is_store(address: str) -> bool:
    """Whether there is a store at a path or an address. Files and globs are not looked at."""
    is_folder = scheme(address) in OBJECT_STORES if scheme(address) else os.path.isdir(address)
    if not is_folder or kind_of(address) is not None or any(mark in address for mark in "*?["):
        return False
    folder, guard = folder_at(address), StoreGuard()
    return folder.exists(RUN) and sum(map(guard.is_marker, folder.names("."))) >= MIN_STORE_NAMES


def open_source(folder: Folder) -> SourceStore:
    """Open a complete store as a source."""
    found = enter(folder, Operation.READ)
    run, job = found.run, found.run.job
    store = StoreInput(
        directory=absolute(folder.root),
        digest=found.head.digest,
        changes=found.head.number,
        claim=found.head.claim,
        units=run.units,
        sources=run.sources,
        bad=int(found.manifest["quarantined"].to_numpy().sum()),
        keep=job.keep,
        has_spans=job.has_spans,
        splits_rows=job.splits_rows,
    )
    plan = tables.read_plan(folder, run).slice(0, run.units)
    return SourceStore(folder, run, tables.read_sources(folder, run), plan, store)


@dataclass(frozen=True, slots=True)
class SourceErasures:
    """What was erased in the source of a store after the store was made: documents, and rows in quarantine by path.

    `units` are those whose parts are not in the source any more as they were read.
    """

    documents: pa.Table
    quarantined: frozenset[tuple[str, int]]
    units: frozenset[int]

    def rows(self, folder: Folder, run: Run) -> list[tuple[str, int]]:
        """All rows, by the paths that the sources have in the store."""
        paths = tables.read_sources(folder, run)["path"].take(self.documents["source"]).to_pylist()
        return sorted({*zip(paths, self.documents["row"].to_pylist(), strict=True), *self.quarantined})

    def rows_left(self, folder: Folder, head: Head) -> int:
        """How many of the rows the store has."""
        left = 0
        for unit in sorted(self.units):
            _, content = open_part(folder, unit, head)
            is_left = np.ones(len(content.row), np.bool_) if content.erased is None else content.erased == 0
            stored = set(zip(content.source[is_left].tolist(), content.row[is_left].tolist(), strict=True))
            erased = of_unit(self.documents, unit)
            left += len(
                stored.intersection(zip(*(erased[name].to_pylist() for name in ("source", "row")), strict=True))
            )
        entries = quarantine.read(folder, head) if self.quarantined else iter(())
        texts = {(entry.file, entry.position) for entry in entries if entry.detail != quarantine.ERASED}
        return left + len(texts & self.quarantined)


def source_erasures(run: Run) -> SourceErasures | None:
    """What was erased in the source of a store after it was made; None if its source is no store.

    Raises StoreError if the source is gone, or is another store now.
    """
    store = run.job.source_store
    if store is None:
        return None
    source = folder_at(store.directory)
    require_run(source)
    head = read_head(source)
    require_version(source, head, StoreVersion(store.changes, store.claim))
    documents = claimed_documents(source, head, after=store.changes).sort_by("unit")
    numbers = range(store.changes + 1, head.number + 1)
    claims = [read_claim(source, number)[0] for number in numbers]
    quarantined = frozenset((row.file, row.row) for claim in claims for row in claim.quarantined)
    is_changed = head.files["change"].to_numpy() > store.changes
    return SourceErasures(documents, quarantined, frozenset(head.files["unit"].to_numpy()[is_changed].tolist()))


def source_note(folder: Folder, run: Run, head: Head) -> str:
    """What a user should know of the source of a store, if that is a store; empty if there is nothing."""
    store = run.job.source_store
    if store is None:
        return ""
    try:
        erasures = source_erasures(run)
        left = 0 if erasures is None else erasures.rows_left(folder, head)
    except TokenmillError as error:
        return f"the source {store.directory} cannot be read: {error.headline}"
    if not left:
        return ""
    command = f"`tokenmill erase {folder.root} --rows {store.directory}`"
    were = "was" if left == 1 else "were"
    return f"{count(left, 'row')} of this store {were} erased in its source since; {command} does it here"
