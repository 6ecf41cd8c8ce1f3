"""Freeze a run in its directory, or find that the directory already holds this very run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa

from tokenmill import layout
from tokenmill.api.cutting import cut
from tokenmill.api.request import Request, versions
from tokenmill.errors import JobChanged
from tokenmill.sources import with_identities

if TYPE_CHECKING:
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


def freeze(folder: Folder, request: Request, executor: Executor) -> FrozenRun:
    """The run of this request in this directory: the one that is there, if it is the same, or a new one.

    A new one is planned by the workers of the executor.
    """
    run = layout.read_run(folder)
    if run is not None:
        return _reopen(folder, run, request)
    sources = with_identities(request.discovery.table)
    units = cut(sources, request.options, request.job.unit_bytes, request.job.limit_units, executor)
    folder.create(layout.PARTS)
    folder.create(layout.TOKENIZER)
    with folder.publish(f"{layout.TOKENIZER}/{request.job.tokenizer.file}") as file:
        file.write(request.vocabulary.content)
    run = layout.Run(
        job=request.job,
        units=len(units),
        sources=len(sources),
        source_bytes=request.source_bytes,
        text_bytes=int(units["text_bytes"].to_numpy().sum()),
        sources_sha256=layout.publish_table(folder, layout.SOURCES, sources),
        plan_sha256=layout.publish_table(folder, layout.PLAN, units),
        engine=request.choice.engine,
        versions=versions(),
    )
    layout.publish_json(folder, layout.RUN, run)
    return FrozenRun(run, sources, units)


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
            "Use the original tokenizer, or another --out.",
        )
    raise JobChanged(
        f"this directory holds a run with another {changes[0][0]}",
        f"run          {folder.root}",
        *(f"{name:<16} was {before}, is now {now}" for name, before, now in changes),
        "Use the original options, or another --out.",
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
        "the sources changed since this run was started",
        f"run          {folder.root}",
        *(details or ["order        the same files come in another order"]),
        "Restore the sources, or use another --out.",
    )
