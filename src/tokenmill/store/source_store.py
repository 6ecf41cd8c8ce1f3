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
from tokenmill.store.chain import Head, StoreVersion, claimed_documents, read_chain, read_head, require_version
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


def find_source_store(sources: list[str]) -> SourceStore | None:
    """The store that is the only source; None if the sources are files. Raises SourceError for other sources beside it.

    Raises StoreError if the store is not complete.
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
class ErasedSince:
    """What was erased in the source of a store after it was made, and is still in the store.

    `rows` are the documents by path and row, and `units` all units of the source that changed since. `problem` says why
    the source could not be read.
    """

    directory: str
    rows: list[tuple[str, int]]
    units: frozenset[int] = frozenset()
    problem: str = ""

    def note(self, store: str) -> str:
        """The note for the user, with the command that erases them; empty if there is nothing to do."""
        if self.problem:
            return f"the source {self.directory} cannot be read: {self.problem}"
        if not self.rows:
            return ""
        documents = count(len(self.rows), "row")
        command = f"`tokenmill erase {store} --rows {self.directory}`"
        return f"{documents} of this store were erased in its source since; {command} erases them here"


def erased_since(folder: Folder, run: Run, head: Head) -> ErasedSince | None:
    """What was erased in the source of a store after it was made; None if its source is no store.

    The rows of the units that are named are looked for in the parts of the store.
    """
    store = run.job.source_store
    if store is None:
        return None
    source = folder_at(store.directory)
    try:
        require_run(source)
        now = read_head(source)
        require_version(source, now, StoreVersion(store.changes, store.claim))
        documents = claimed_documents(source, now, after=store.changes)
        claims = read_chain(source, now)[store.changes :] if now.number > store.changes else []
    except TokenmillError as error:
        return ErasedSince(store.directory, [], problem=error.headline)
    paths = tables.read_sources(folder, run)["path"]
    rows = set[tuple[str, int]]()
    for unit in np.unique(documents["unit"].to_numpy()).tolist():
        _, content = open_part(folder, unit, head)
        is_left = np.ones(len(content.row), np.bool_) if content.erased is None else content.erased == 0
        stored = set(zip(content.source[is_left].tolist(), content.row[is_left].tolist(), strict=True))
        of_unit = documents.filter(documents["unit"].to_numpy() == unit)
        asked = set(zip(of_unit["source"].to_pylist(), of_unit["row"].to_pylist(), strict=True))
        rows |= {(paths[index].as_py(), row) for index, row in asked & stored}
    erased = {(entry.file, entry.row) for claim in claims for entry in claim.quarantined}
    if erased:
        with_text = (entry for entry in quarantine.read(folder, head) if entry.detail != quarantine.ERASED)
        rows |= erased & {(entry.file, entry.position) for entry in with_text}
    changed = now.files.filter(now.files["change"].to_numpy() > store.changes)
    return ErasedSince(store.directory, sorted(rows), frozenset(changed["unit"].to_pylist()))
