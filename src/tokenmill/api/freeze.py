"""Freeze a run in its directory, or find that the directory already holds this very run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tokenmill import layout
from tokenmill.api.cutting import cut
from tokenmill.api.request import Request, versions
from tokenmill.errors import JobChanged
from tokenmill.sources import with_identities
from tokenmill.wording import count

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenmill.executors.outcomes import Executor
    from tokenmill.storage import Folder

NAMED_SOURCES = 3
"""How many changed sources a message names."""


@dataclass(frozen=True, slots=True)
class FrozenRun:
    """A run whose job, sources and plan are on disk."""

    run: layout.Run
    sources: pa.Table
    plan: pa.Table


def freeze(
    folder: Folder, request: Request, executor: Executor, pending: Callable[[str], None] = lambda _: None
) -> FrozenRun:
    """The run of this request in this directory: the one that is there, if it is the same, or a new one.

    A new one is planned by the workers of the executor; what that is at is told to whoever is `pending`.
    """
    run = layout.read_run(folder)
    if run is not None:
        return _reopen(folder, run, request)
    sources = with_identities(request.discovery.table, plan_step(request.discovery.table, "looked at", pending))
    job, check = request.job, request.named.check_plan
    told = plan_step(sources, "planned", pending)
    units = cut(sources, request.options, job.unit_bytes, job.limit_units, executor, check=check, told=told)
    folder.create(layout.PARTS)
    folder.create(layout.TOKENIZER)
    tables = {layout.SOURCES: layout.table_bytes(sources), layout.PLAN: layout.table_bytes(units)}
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in tables.items()}
    run = layout.Run(
        job=request.job,
        units=len(units),
        sources=len(sources),
        source_bytes=request.source_bytes,
        text_bytes=int(units["text_bytes"].to_numpy().sum()),
        sources_sha256=hashes[layout.SOURCES],
        plan_sha256=hashes[layout.PLAN],
        engine=request.choice.engine,
        versions=versions(),
    )
    vocabulary = {f"{layout.TOKENIZER}/{request.job.tokenizer.file}": request.vocabulary.content}
    named = {layout.table_name(folder, name, hashes[name]): data for name, data in tables.items()}
    if not _lay_down(folder, {**vocabulary, **named}, layout.json_bytes(run)):
        return _reopen(folder, layout.require_run(folder), request)
    return FrozenRun(run, sources, units)


def plan_step(sources: pa.Table, what: str, pending: Callable[[str], None]) -> Callable[[int], None]:
    """Tells how many of the sources a step of planning has come to."""
    return lambda done: pending(f"plan         {done:,} of {count(len(sources), 'file')} {what}")


def _lay_down(folder: Folder, files: dict[str, bytes], run: bytes) -> bool:
    """Publish the files of a run, and `run.json` last; False if somebody else has frozen another one meanwhile.

    On a disk there is nobody else, because of the lock. In an object store whoever publishes `run.json` first has won;
    the other files are called by their hashes there, so that nobody writes over somebody else's.
    """
    folder.check_conditional_create()
    for name, data in files.items():
        with folder.publish(name) as file:
            file.write(data)
    return folder.publish_new(layout.RUN, run)


def load(folder: Folder, run: layout.Run) -> FrozenRun:
    """The sources and the plan of a run that is on disk."""
    return FrozenRun(run, layout.read_sources(folder, run), layout.read_plan(folder, run))


def _reopen(folder: Folder, run: layout.Run, request: Request) -> FrozenRun:
    frozen = load(folder, run)
    _refuse_other_sources(folder, frozen.sources, request.discovery.table)
    _refuse_other_job(folder, run, request)
    return frozen


def _refuse_other_job(folder: Folder, run: layout.Run, request: Request) -> None:
    changes = run.job.differences(request.job)
    if not changes:
        return
    if changes[0][0] == "tokenizer":
        old, new = run.job.tokenizer, request.job.tokenizer
        raise JobChanged(
            "the tokenizer changed since this run was started",
            f"run          {folder.root}   ({old.name}, sha256 {old.sha256[:8]}...)",
            f"now          {new.name}   (sha256 {new.sha256[:8]}...)",
            "Use the original tokenizer, another --out, or remove the directory.",
        )
    lines = [("run", folder.root), *((name, f"was {before}, is now {now}") for name, before, now in changes)]
    width = max(12, *(len(name) for name, _ in lines))
    raise JobChanged(
        f"this directory holds a run with another {changes[0][0]}",
        *(f"{name:<{width}} {value}" for name, value in lines),
        "Use the original options, another --out, or remove the directory.",
    )


def _refuse_other_sources(folder: Folder, before: pa.Table, now: pa.Table) -> None:
    if before.drop_columns("identity").equals(now):
        return
    old = dict(zip(before["path"].to_pylist(), before["fingerprint"].to_pylist(), strict=True))
    new = dict(zip(now["path"].to_pylist(), now["fingerprint"].to_pylist(), strict=True))
    kinds = {
        "changed": [path for path in old if path in new and old[path] != new[path]],
        "gone": [path for path in old if path not in new],
        "new": [path for path in new if path not in old],
    }
    details = []
    for kind, paths in kinds.items():
        details += [f"{kind:<12} {path}" for path in paths[:NAMED_SOURCES]]
        if len(paths) > NAMED_SOURCES:
            details.append(f"{kind:<12} and {len(paths) - NAMED_SOURCES:,} more")
    raise JobChanged(
        "the sources changed since this run was started"
        if kinds["changed"]
        else "these are not the sources that this run was started with",
        f"run          {folder.root}",
        *(details or ["order        the same files come in another order"]),
        "Use the original sources, another --out, or remove the directory.",
    )
