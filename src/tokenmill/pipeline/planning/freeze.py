"""Freezes a run in its directory, or continues the one that the directory holds.

A part is used again only if it was made from what the sources hold now. If that is not certain, because `run.json` is
missing or a source has another path or modification time, `adopt` compares the parts with their sources, and publishes
the run after that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tokenmill.errors import CorruptStore, JobChanged, SourceError
from tokenmill.executors.outcomes import Executor
from tokenmill.humanize import count, size
from tokenmill.pipeline.planning.chat import check_template
from tokenmill.pipeline.planning.compare import (
    compare_request,
    compare_versions,
    refuse_changed,
    refuse_denied_paths,
    refuse_fewer_units,
    refuse_other_duplicates,
    refuse_other_job,
    with_defaults,
)
from tokenmill.pipeline.planning.deduplicate import find_duplicates
from tokenmill.pipeline.planning.request import PrepareRequest, versions
from tokenmill.pipeline.planning.sample import write_vocabulary
from tokenmill.pipeline.planning.split_sources import plan_units
from tokenmill.pipeline.planning.token_sample import with_found_frame
from tokenmill.pipeline.unit.documents import fast_bytes
from tokenmill.sources import with_identities
from tokenmill.sources.tokens.joins import with_joins
from tokenmill.storage import Folder, publish_new
from tokenmill.storage.digest import hash_of
from tokenmill.store import layout, tables
from tokenmill.store.chain import BASE, Head, refuse_remaking, withdraw_manifest
from tokenmill.store.deny import deny_name, parse_list, read_content
from tokenmill.store.duplicates import duplicates_bytes, duplicates_name, read_duplicates
from tokenmill.store.job import Job, Run, read_vocabulary, run_record
from tokenmill.store.state import Operation, State, StoreState, enter
from tokenmill.tokenization.tokenizer import REFERENCES


@dataclass(frozen=True, slots=True)
class FrozenRun:
    """A run whose job, sources and plan are on disk, or will be after `adopt`.

    `files` are not published yet. `unproved` sources may hold other text than the parts were made from. `head` is that
    of a store from which documents were erased.
    """

    run: Run
    sources: pa.Table
    whole_plan: pa.Table
    files: dict[str, bytes] = field(default_factory=dict)
    unproved: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    notes: tuple[str, ...] = ()
    head: Head = BASE

    @property
    def plan(self) -> pa.Table:
        """The units of the run: the first ones of the plan, or all."""
        return self.whole_plan.slice(0, self.run.units)

    @property
    def reference_engine(self) -> str:
        """The engine, and the library, that defines the tokens."""
        return REFERENCES[self.run.job.tokenizer.kind].name

    @property
    def reference_version(self) -> str:
        """The version of that library when the run was started."""
        return self.run.versions.get(self.reference_engine, "")


def freeze(
    folder: Folder,
    request: PrepareRequest,
    executor: Executor,
    pending: Callable[[str], None] = lambda _: None,
    moved: Sequence[str] = (),
) -> FrozenRun:
    """The run of this request in this directory: the existing one, if it is the same, or a new one.

    The workers of the executor plan a new run. Planning progress is reported through `pending`.
    """
    found = enter(folder, Operation.PREPARE)
    if found.state is not State.ABSENT:
        return _reopen(found, request, executor, pending, moved)
    sources = _identified(request, pending)
    frozen = _planned(folder, request, sources, executor, pending)
    if layout.committed_units(folder, frozen.run.units).any():
        refuse_remaking(folder)
        note = f"{layout.RUN} was missing: the parts that are there are compared with the sources"
        return replace(frozen, unproved=np.ones(len(sources), np.bool_), notes=(*frozen.notes, note))
    if not publish(folder, frozen):
        return _reopen(enter(folder, Operation.PREPARE), request, executor, pending, moved)
    return replace(frozen, files={})


def _identified(request: PrepareRequest, pending: Callable[[str], None]) -> pa.Table:
    """The sources with their identities, which a store has."""
    if request.source is not None:
        return request.source.sources
    return with_identities(request.discovery.table, plan_step(request.discovery.table, "looked at", pending))


def request_units(
    request: PrepareRequest, sources: pa.Table, executor: Executor, pending: Callable[[str], None]
) -> pa.Table:
    """The plan of a request, which is that of its source if that is a store."""
    if request.source is not None:
        return request.source.plan
    step = plan_step(sources, "planned", pending)
    return plan_units(
        sources, request.options, request.job.unit_bytes, executor, check=request.named.check_plan, on_progress=step
    )


def _planned(
    folder: Folder, request: PrepareRequest, sources: pa.Table, executor: Executor, pending: Callable[[str], None]
) -> FrozenRun:
    """A run that is planned, but not published."""
    _refuse_long_texts(request, sources)
    check_template(request.job.chat, executor)
    sources, joined = with_joins(sources, request.job.tokens) if request.source is None else (sources, ())
    units = request_units(request, sources, executor, pending)
    job, found, token_check = with_found_frame(request, units, sources, executor)
    job, duplicates = _without_duplicates(units, sources, replace(request, job=job), executor, pending)
    contents = {layout.SOURCES: tables.table_bytes(sources), layout.PLAN: tables.table_bytes(units)}
    hashes = {name: hash_of(data) for name, data in contents.items()}
    run = Run(
        job=job,
        units=0,
        planned_units=len(units),
        sources=len(sources),
        source_bytes=request.source_bytes,
        text_bytes=0,
        sources_blake3=hashes[layout.SOURCES],
        plan_blake3=hashes[layout.PLAN],
        engine=request.choice.engine,
        versions=versions(),
        token_check=token_check,
    )
    vocabulary = {f"{layout.TOKENIZER}/{each.spec.file}": each.content for each in request.vocabularies}
    denied = {deny_name(job.deny): request.deny} if job.deny else {}
    named = {layout.table_name(folder, name, hashes[name]): data for name, data in contents.items()}
    notes = (*joined, *found, *_deny_notes(request.deny, sources))
    run = _with_units(run, units, request.units_of(len(units)))
    return FrozenRun(run, sources, units, files={**vocabulary, **denied, **duplicates, **named}, notes=notes)


def _with_units(run: Run, plan: pa.Table, units: int) -> Run:
    """The run of the first units of its plan."""
    return msgspec.structs.replace(run, units=units, text_bytes=int(plan["text_bytes"].to_numpy()[:units].sum()))


def grow(folder: Folder, frozen: FrozenRun, request: PrepareRequest) -> FrozenRun:
    """The run with as many units as the request asks for. With more than before, a complete store is not any more."""
    units = request.units_of(frozen.run.planned_units)
    if units <= frozen.run.units:
        return frozen
    withdraw_manifest(folder)
    run = _with_units(frozen.run, frozen.whole_plan, units)
    layout.publish_json(folder, layout.RUN, run_record(run))
    return replace(frozen, run=run)


def _without_duplicates(
    units: pa.Table, sources: pa.Table, request: PrepareRequest, executor: Executor, pending: Callable[[str], None]
) -> tuple[Job, dict[str, bytes]]:
    """The job with the hash of the list of duplicates, and that list by its name, if the request asks for it."""
    job = request.job
    if job.dedup is None:
        return job, {}

    def step(done: int) -> None:
        pending(f"duplicates   {done:,} of {count(len(units), 'unit')} read")

    rows = find_duplicates(units, sources, request, executor, step)
    blake3 = rows.blake3()
    return msgspec.structs.replace(job, dedup=blake3), {duplicates_name(blake3): duplicates_bytes(rows)}


def _deny_notes(content: bytes, sources: pa.Table) -> tuple[str, ...]:
    """What the user should know about a deny list: the sources that it names and that are not read."""
    named = parse_list(content)
    read: set[str] = set()
    for path in sources["path"].to_pylist() if named.rows else ():
        read.update(named.sources_at(path))
    unread = sorted({*named.rows} - read)
    if not unread:
        return ()
    shown = ", ".join(unread[:3]) + (" ..." if len(unread) > 3 else "")
    return (f"--deny names {count(len(unread), 'source')} of which nothing is read: {shown}",)


def _refuse_long_texts(request: PrepareRequest, sources: pa.Table) -> None:
    """Refuse a text file that is a single document longer than the job allows, before any work."""
    job = request.job
    if job.separator is not None or request.source is not None:
        return
    for path, kind, length in zip(*(sources[name].to_pylist() for name in ("path", "kind", "size")), strict=True):
        if kind == "text" and path.endswith(".txt") and length > job.document_bytes:
            raise SourceError(
                f"a text file is one document of {size(length)}, and documents may have {size(job.document_bytes)}",
                f"file         {path}",
                "Split it into documents with --separator, or allow longer ones:",
                f"--max-document-bytes {-(-length // 10**6)}MB --memory {-(-fast_bytes(length) // 10**9) + 1}GB",
            )


def plan_step(sources: pa.Table, what: str, pending: Callable[[str], None]) -> Callable[[int], None]:
    """A function that reports how many of the sources a step of planning has done."""
    return lambda done: pending(f"plan         {done:,} of {count(len(sources), 'file')} {what}")


def publish(folder: Folder, frozen: FrozenRun) -> bool:
    """Publish the files of a run, and `run.json` last; False if another process published a run meanwhile.

    On a disk the lock keeps other processes out. In an object store the first `run.json` wins; the tables hold their
    hashes in their names there, so that no process writes over the files of another.
    """
    folder.locks.check_conditional_create()
    _create_directories(folder, frozen.run)
    folder.create(layout.TOKENIZER)
    _publish_files(folder, frozen.files)
    return publish_new(folder, layout.RUN, layout.json_bytes(run_record(frozen.run)))


def publish_lists(folder: Folder, frozen: FrozenRun) -> None:
    """Publish the lists of rows to leave out, which the comparison of parts with sources reads. Hashes name them."""
    lists = {name: data for name, data in frozen.files.items() if name.startswith(f"{layout.DENY}/")}
    if lists:
        folder.create(layout.DENY)
        _publish_files(folder, lists)


def publish_again(folder: Folder, frozen: FrozenRun) -> None:
    """Replace the run of a directory by one with other sources. Replacing run.json makes it effective."""
    if not folder.exists(layout.RUN):
        publish(folder, frozen)
        return
    _publish_files(folder, frozen.files)
    layout.publish_json(folder, layout.RUN, run_record(frozen.run))
    kept = {*frozen.files, *(layout.table_name(folder, name, _hash(frozen, name)) for name in _TABLES)}
    for name in folder.names("."):
        if name.startswith(_PREFIXES) and name.endswith(".parquet") and name not in kept:
            folder.discard(name)


_TABLES = (layout.SOURCES, layout.PLAN)
_PREFIXES = tuple(name.removesuffix(".parquet") for name in _TABLES)


def _hash(frozen: FrozenRun, name: str) -> str:
    return frozen.run.sources_blake3 if name == layout.SOURCES else frozen.run.plan_blake3


def load_existing(folder: Folder, run: Run) -> FrozenRun:
    """The sources and the plan of a run that is on disk."""
    return FrozenRun(run, tables.read_sources(folder, run), tables.read_plan(folder, run))


def _reopen(
    found: StoreState,
    request: PrepareRequest,
    executor: Executor,
    pending: Callable[[str], None],
    moved: Sequence[str],
) -> FrozenRun:
    folder, run, head = found.folder, found.run, found.head
    units = request.units_of(run.planned_units)
    complete = found.has_manifest and units <= run.units
    request = with_defaults(request, run)
    try:
        if run.job.dedup is not None:
            read_duplicates(folder, run.job.dedup)
        frozen = load_existing(folder, run)
    except CorruptStore as damage:
        frozen = _made_again(folder, run, request, executor, pending, moved, damage)
    changes = compare_request(folder, run, frozen.sources, request, moved)
    if complete:
        refuse_changed(folder, frozen.sources, changes)
    refuse_other_job(folder, run, request)
    refuse_fewer_units(folder, run, units)
    _write_vocabulary(folder, request)
    _write_deny_list(folder, run, request)
    refuse_denied_paths(folder, run.job, frozen.sources, changes.table)
    notes = () if complete else compare_versions(folder, run, request)
    is_foreign = found.has_foreign_manifest
    if is_foreign:  # the parts may be those of the other run, too
        notes = (*notes, "the manifest belongs to another run: the parts are compared with the sources")
    frozen = replace(frozen, notes=(*frozen.notes, *notes), head=head)
    unproved = changes.unproved | is_foreign
    frozen = _with_path(folder, frozen, request)
    if changes.table.equals(frozen.sources):
        _create_directories(folder, run)
        return replace(frozen, unproved=unproved)
    if changes.changed.any() or changes.unproved.any():
        # The plan may keep the footer of another file, so unproved sources are split again, too.
        planned = _planned(folder, request, changes.table, executor, pending)
        if complete and not planned.whole_plan.equals(frozen.whole_plan):
            refuse_changed(folder, frozen.sources, changes, strictly=True)
        refuse_other_duplicates(folder, run, planned.run)
        # A run that is planned again keeps the versions and the engine that it was started with.
        again = msgspec.structs.replace(planned.run, versions=run.versions, engine=run.engine)
        if run.trial:
            again = _with_units(again, planned.whole_plan, min(run.units, again.planned_units))
        note = [_changed_note(changes.paths(changes.changed))] if changes.changed.any() else []
        frozen = replace(planned, run=again, notes=(*frozen.notes, *note), head=head)
    else:
        sources_blake3 = hash_of(tables.table_bytes(changes.table))
        again = msgspec.structs.replace(run, sources_blake3=sources_blake3)
        frozen = replace(frozen, run=again, sources=changes.table)
    if changes.unproved.any():
        moved_note = (
            f"{count(int(changes.unproved.sum()), 'source')} moved or touched: the parts are compared with them"
        )
        frozen = replace(frozen, notes=(*frozen.notes, moved_note))
    contents = {layout.SOURCES: tables.table_bytes(frozen.sources), layout.PLAN: tables.table_bytes(frozen.whole_plan)}
    files = {layout.hashed_name(name, _hash(frozen, name)): data for name, data in contents.items()}
    return replace(frozen, files=files, unproved=unproved)


def _with_path(folder: Folder, frozen: FrozenRun, request: PrepareRequest) -> FrozenRun:
    """The run with the directory of the store that is its source, if that was moved."""
    if request.source is None or frozen.run.job.source_store == request.job.source_store:
        return frozen
    frozen = replace(frozen, run=msgspec.structs.replace(frozen.run, job=request.job))
    publish_again(folder, frozen)
    return frozen


def _made_again(  # noqa: PLR0913, PLR0917 - what is there, what is asked for, and what plans it anew
    folder: Folder,
    run: Run,
    request: PrepareRequest,
    executor: Executor,
    pending: Callable[[str], None],
    moved: Sequence[str],
    damage: CorruptStore,
) -> FrozenRun:
    """Publish plan and sources again for a run that has lost one of them, if they are what `run.json` names."""
    refuse_other_job(folder, run, request)
    try:
        before = tables.read_sources(folder, run)
        changes = compare_request(folder, run, before, request, moved)
        refuse_changed(folder, before, changes)
        sources = changes.table
    except CorruptStore:
        before = sources = _identified(request, pending)
    planned = _planned(folder, request, sources, executor, pending)
    refuse_other_duplicates(folder, run, planned.run)
    contents = {layout.SOURCES: tables.table_bytes(before), layout.PLAN: tables.table_bytes(planned.whole_plan)}
    hashes = {name: hash_of(data) for name, data in contents.items()}
    if hashes != {layout.SOURCES: run.sources_blake3, layout.PLAN: run.plan_blake3}:
        counts = (
            ("sources", run.sources, len(before)),
            ("units", run.planned_units, planned.run.planned_units),
            ("source bytes", run.source_bytes, request.source_bytes),
        )
        differing = [f"{name:<12} were {was:,}, are now {now:,}" for name, was, now in counts if was != now]
        raise JobChanged(
            f"{damage.headline}, and cannot be made again from these sources",
            f"run          {folder.root}",
            *(differing or ["sources      their names, times or contents differ"]),
            "Use the original sources. Or remove run.json and run the same command again: the parts are compared with "
            "the sources, and those that fit are kept.",
        )
    files = {layout.table_name(folder, name, hashes[name]): data for name, data in contents.items()}
    if run.job.dedup is not None:
        folder.create(layout.DENY)
        files[duplicates_name(run.job.dedup)] = planned.files[duplicates_name(run.job.dedup)]
    _publish_files(folder, files)
    note = f"{damage.headline}: the tables of the run were made again, with the checksums of {layout.RUN}"
    return FrozenRun(run, before, planned.whole_plan, notes=(note,))


def _changed_note(paths: list[str]) -> str:
    if len(paths) == 1:
        return f"{paths[0]} changed since the run was started: its units are done again"
    return f"{count(len(paths), 'source')} changed since the run was started: their units are done again"


def _create_directories(folder: Folder, run: Run) -> None:
    """Make the directories of what workers publish."""
    folder.create(layout.PARTS)
    if run.job.keep:
        folder.create(layout.KEPT)
    if run.job.deny or run.job.dedup is not None:
        folder.create(layout.DENY)


def _publish_files(folder: Folder, files: Mapping[str, bytes]) -> None:
    """Publish files by their names."""
    for name, data in files.items():
        with folder.publish(name) as file:
            file.write(data)


def _write_vocabulary(folder: Folder, request: PrepareRequest) -> None:
    """Publish the vocabulary again if the store has lost it. It is that of the run: its hash is part of the job."""
    for vocabulary in request.vocabularies:
        try:
            read_vocabulary(folder, vocabulary.spec)
        except CorruptStore:
            write_vocabulary(folder, vocabulary)


def _write_deny_list(folder: Folder, run: Run, request: PrepareRequest) -> None:
    """Publish the list of denied rows again if the store has lost it. Its hash is part of the job."""
    if not run.job.deny:
        return
    try:
        read_content(folder, run.job.deny)
    except CorruptStore:
        folder.create(layout.DENY)
        _publish_files(folder, {deny_name(run.job.deny): request.deny})
